"""Cuts a text that is still being written, as early as is safe, into pieces to be spoken."""

from __future__ import annotations

import re

from ferrum_local.tts.clauses import (
    EARLY_CHARS,
    MAX_PART_CHARS,
    early_clause_end,
    last_cut,
    sentence_ends,
)

_LINE_END = re.compile(r"\n")
_LIST_NUMBER = re.compile(r"\s*\d{1,3}\.\s*")
# Marks of Markdown that open or close something; "2 * 3" and a bullet do neither.
_STARS = re.compile(r"\*+(?=\S)|(?<=\S)\*+")
_UNDERSCORES = re.compile(r"(?<!\w)_+(?=\S)|(?<=\S)_+(?!\w)")
_LINK = re.compile(r"\[[^\[\]\n]*\]\([^()\s]*\)")


class ClauseFeed:
    """Joined, the pieces are the text to the character; each has a word in it, but for the last.

    Pieces end at line and sentence ends, and not within Markdown's ``**…**`` and the like, which
    could not be taken out by halves.

    :param early: the first piece shall be just the first clause, or the first words.
    """

    def __init__(self, *, early: bool = False) -> None:
        self._early = early
        self._rest = ""

    def add(self, text: str) -> list[str]:
        """The pieces that are complete with ``text``."""
        self._rest += text
        found = []
        start = 0
        # A mark at the very end waits for what follows: "3." may become "3.5".
        while end := self._piece_end(self._rest[start : start + MAX_PART_CHARS + 1]):
            found.append(self._rest[start : start + end])
            start += end
            self._early = False
        self._rest = self._rest[start:]
        return found

    def finish(self) -> list[str]:
        """What is left, when nothing more will be added."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []

    def _piece_end(self, window: str) -> int:
        """Of the first piece in ``window``; 0: not known yet."""
        line_ends = [match.end() for match in _LINE_END.finditer(window)]
        ends = {*line_ends, *sentence_ends(window)}
        if self._early and (clause_end := early_clause_end(window)) is not None:
            ends.add(clause_end)
        for end in sorted(ends):
            piece = window[:end]
            if end not in line_ends and (_LIST_NUMBER.fullmatch(piece) or _is_open(piece)):
                continue
            if any(c.isalnum() for c in piece):
                return end + len(window[end:]) - len(window[end:].lstrip())
        if self._early and len(window) > EARLY_CHARS:
            end = last_cut(window, EARLY_CHARS)
            if any(c.isalnum() for c in window[:end]) and not _is_open(window[:end]):
                return end
        return last_cut(window, MAX_PART_CHARS) if len(window) > MAX_PART_CHARS else 0


def _is_open(piece: str) -> bool:
    """Whether inline Markdown begins in ``piece`` and does not end there."""
    line = _LINK.sub("", piece[piece.rfind("\n") + 1 :])
    if line.count("`") % 2 or line.count("[") > line.count("]") or "](" in line:
        return True
    return bool(len(_STARS.findall(line)) % 2 or len(_UNDERSCORES.findall(line)) % 2)
