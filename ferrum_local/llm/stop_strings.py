"""Finds stop strings in text that arrives in pieces, and lets nothing of them through.

The text is cut before the leftmost stop string, wherever the pieces happen to break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """Text that may be sent now, and whether the end is reached."""

    text: str
    stopped: bool


class StopMatcher:
    """Holds back what may become a stop string; releases it when it does not.

    The joined texts of all ``push`` and the final ``flush`` are the whole text up to the
    leftmost occurrence of any stop string, or all of it. To be that exactly, a stop
    string found inside what may still become a longer one that began earlier (``b`` in
    ``abc``) does not stop at once: the next few characters decide where to cut.

    Work is proportional to text length times number of stops, whatever their length.

    :param stops: strings to end before; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in dict.fromkeys(stops) if stop]
        self._first_chars = frozenset(pattern.text[0] for pattern in self._patterns)
        self._held = ""
        self._cut: int | None = None  # start, in _held, of the leftmost stop string so far
        self._stopped = False

    def push(self, text: str) -> StopResult:
        """Take the next piece of text; after a stop nothing is released any more."""
        if self._stopped:
            return StopResult("", True)
        if not self._held and self._first_chars.isdisjoint(text):
            return StopResult(text, False)
        n_held = len(self._held)
        seen = self._held + text
        for pattern in self._patterns:
            end = pattern.advance(text)
            if end is not None:
                start = n_held + end - len(pattern.text)
                self._cut = start if self._cut is None else min(start, self._cut)
        # The longest begun stop string starts leftmost: all before it is decided.
        n_begun = max(pattern.n_matched for pattern in self._patterns)
        n_decided = len(seen) - n_begun
        if self._cut is not None:
            if n_decided >= self._cut:
                return self._stop(seen)
            self._cut -= n_decided
        self._held = seen[n_decided:]
        return StopResult(seen[:n_decided], False)

    def flush(self) -> StopResult:
        """Release what is held, once, when generation ended.

        ``stopped`` is True when a stop string was complete and only its place was open.
        """
        if self._stopped:
            return StopResult("", True)
        if self._cut is not None:
            return self._stop(self._held)
        held, self._held = self._held, ""
        return StopResult(held, False)

    def _stop(self, seen: str) -> StopResult:
        self._stopped = True
        self._held = ""
        return StopResult(seen[: self._cut], True)


class _Pattern:
    """One stop string as a Knuth-Morris-Pratt automaton."""

    __slots__ = ("_borders", "n_matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.n_matched = 0  # longest prefix of the pattern that the text now ends with
        # _borders[i]: longest proper prefix of text[: i + 1] that is also its suffix
        self._borders = [0] * len(text)
        length = 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = self._borders[length - 1]
            if text[i] == text[length]:
                length += 1
            self._borders[i] = length

    def advance(self, text: str) -> int | None:
        """Read on; return how much of ``text`` was read when the pattern was complete.

        The rest of ``text`` is then not looked at: a later occurrence cannot be leftmost.
        """
        pattern, borders, matched = self.text, self._borders, self.n_matched
        for i, char in enumerate(text):
            while matched and char != pattern[matched]:
                matched = borders[matched - 1]
            if char == pattern[matched]:
                matched += 1
                if matched == len(pattern):
                    self.n_matched = 0
                    return i + 1
        self.n_matched = matched
        return None
