"""How much of an answer the listener has heard, as far as the server can tell.

Audio leaves faster than it is heard. A client plays it at its own speed from the moment it comes.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\s*\S+")


class SpokenItem:
    """The audio of one item: which text is heard when.

    Times are monotonic seconds for the moment of sending, milliseconds within the audio.
    """

    def __init__(self) -> None:
        self._clauses: list[tuple[str, int, int]] = []  # text, start and end in ms
        self._pieces: list[tuple[float, float]] = []  # when played, and for how long; seconds
        self._duration_ms = 0.0

    @property
    def duration_ms(self) -> int:
        return int(self._duration_ms)

    def add(self, text: str, duration_ms: float, now_s: float) -> None:
        """A clause that is sent now."""
        start_ms = self._duration_ms
        self._duration_ms += duration_ms
        self._clauses.append((text, int(start_ms), int(self._duration_ms)))
        self._pieces.append((max(now_s, self.ends_s), duration_ms / 1000))

    @property
    def ends_s(self) -> float:
        """When the last of it will have been heard."""
        if not self._pieces:
            return 0.0
        start_s, duration_s = self._pieces[-1]
        return start_s + duration_s

    def is_playing(self, now_s: float) -> bool:
        return now_s < self.ends_s

    def heard_ms(self, now_s: float) -> int:
        heard_s = sum(min(max(0.0, now_s - start), duration) for start, duration in self._pieces)
        return min(round(heard_s * 1000), self.duration_ms)

    def text_until(self, end_ms: int) -> str:
        """What was heard up to a moment; of a clause that was cut, the words that fit."""
        return "".join(_spoken(clause, end_ms) for clause in self._clauses).rstrip()


def _spoken(clause: tuple[str, int, int], end_ms: int) -> str:
    text, start_ms, stop_ms = clause
    if end_ms >= stop_ms:
        return text
    if end_ms <= start_ms:
        return ""
    words = _WORD.findall(text)
    n_heard = int(len(words) * (end_ms - start_ms) / (stop_ms - start_ms))
    return "".join(words[:n_heard])
