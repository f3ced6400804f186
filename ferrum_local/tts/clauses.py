"""Cuts a text into parts that are synthesised one by one: sentences, or clauses of long ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferrum_local.tts.abbreviations import TITLES

MAX_PART_CHARS = 300  # a part's synthesis bounds memory and how late a cancel is seen
EARLY_CHARS = 90  # of the first part, where it is wanted soon and has no mark
_MIN_CLAUSE_CHARS = 8  # "Well," alone would sound like a sentence of its own

_PARAGRAPH = re.compile(r"\s*\n\s*")
# A mark, closing quotes, then a blank; CJK marks need no blank.
_SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+)")
_CLAUSE_END = re.compile(r"(?:[,;:][\"'”’)\]]*(?=\s)|\s[–—-](?=\s)|—|[，、；：])")
_ABBREVIATED = re.compile(r"(?:^|[\s(])(?:" + "|".join(TITLES) + r"|[A-Z]|[ei]\.[eg])\.$")


def paragraphs(text: str) -> list[str]:
    """The lines of ``text`` that have something in them."""
    return [line for line in _PARAGRAPH.split(text.strip()) if line]


def sentences(paragraph: str) -> list[str]:
    """Joined by blanks they are the paragraph again. ``Dr. Who`` is not cut."""
    found = []
    start = 0
    for end in sentence_ends(paragraph):
        found.append(paragraph[start:end].strip())
        start = end
    found.append(paragraph[start:].strip())
    return [sentence for sentence in found if sentence]


def sentence_ends(text: str) -> Iterator[int]:
    """Where sentences end for sure: what follows the last of ``text`` may change it."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if not _ABBREVIATED.search(text[start : end.end()]):
            start = end.end()
            yield start


def early_clause_end(text: str) -> int | None:
    """Where a first clause ends that is wanted soon, if a mark tells."""
    end = _CLAUSE_END.search(text, _MIN_CLAUSE_CHARS)
    return end.end() if end is not None and end.end() <= EARLY_CHARS else None


def parts(sentence: str, *, early: bool = False) -> list[str]:
    """``sentence`` in pieces of at most 300 characters, cut at clause marks where it has some.

    :param early: the first piece shall be just the first clause, or the first words.
    """
    found = []
    rest = sentence
    if early:
        first, rest = _first_clause(sentence)
        found.append(first)
    while len(rest) > MAX_PART_CHARS:
        piece, rest = _cut(rest, MAX_PART_CHARS)
        found.append(piece)
    return [piece for piece in (*found, rest) if piece]


def _first_clause(sentence: str) -> tuple[str, str]:
    end = early_clause_end(sentence)
    if end is not None:
        return sentence[:end].strip(), sentence[end:].strip()
    return _cut(sentence, EARLY_CHARS) if len(sentence) > EARLY_CHARS else (sentence, "")


def _cut(text: str, most: int) -> tuple[str, str]:
    at = last_cut(text, most)
    return text[:at].strip(), text[at:].strip()


def last_cut(text: str, most: int) -> int:
    """The last clause mark, else the last blank, within ``most`` characters; else ``most``."""
    ends = [m.end() for m in _CLAUSE_END.finditer(text, 0, most + 1) if m.end() <= most]
    at = ends[-1] if ends else text.rfind(" ", 1, most + 1)
    return at if at > 0 else most
