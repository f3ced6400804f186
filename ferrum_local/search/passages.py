"""Cuts a text into passages that an embedding model reads whole. No files, no model."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

# Places where a text may be cut, the best first: after a match a new unit begins.
_BOUNDARIES = (
    re.compile(r"\n(?=#{1,6} )|\n(?=\S.*\n(?:={3,}|-{3,}|~{3,}|\^{3,})\n)"),  # before a heading
    re.compile(r"\n(?:[ \t]*\n)+"),  # after a paragraph
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"),  # after a sentence
    re.compile(r"\n"),
    re.compile(r"\s+"),
)
_HEADING, _PARAGRAPH = 0, 1
_WITHIN_WORD = len(_BOUNDARIES)

CountTokens: TypeAlias = Callable[[Sequence[str]], Sequence[int]]


class Passage(NamedTuple):
    """A stretch of a text. Lines count from 1; the last is part of it."""

    text: str
    first_line: int
    last_line: int


class _Unit(NamedTuple):
    """What is never cut: ``text[start:end]``. ``rank``: of the boundary that it begins at."""

    start: int
    end: int
    n_tokens: int
    rank: int


def split_passages(
    text: str, count_tokens: CountTokens, *, max_tokens: int, overlap_tokens: int = 0
) -> list[Passage]:
    """The passages of ``text``, in order; together they have all of it but blank space.

    They end where a section, a paragraph, a sentence or a line does, in this order of
    preference. Where a paragraph had to be cut, the next passage repeats its last sentences.

    :param count_tokens: of each of several texts, without the markers at their ends.
    :param max_tokens: of a passage. Only a single character of more tokens is longer.
    :param overlap_tokens: that a passage may repeat of the one before.
    """
    units = _units(text, count_tokens, max_tokens)
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    passages = []
    for first, last in _packed(units, max_tokens, overlap_tokens):
        whole = text[first.start : last.end]
        body = whole.strip("\n")
        start = first.start + len(whole) - len(whole.lstrip("\n"))
        body = body.rstrip()
        passages.append(
            Passage(
                body,
                bisect.bisect_right(line_starts, start),
                bisect.bisect_right(line_starts, start + len(body) - 1),
            )
        )
    return passages


def _units(text: str, count_tokens: CountTokens, max_tokens: int) -> list[_Unit]:
    """Paragraphs, and of those that are too long the largest parts that are not."""
    found: list[_Unit] = []
    open_spans = [(0, len(text), _HEADING)]
    for level, boundary in enumerate(_BOUNDARIES):
        spans = [
            piece
            for start, end, rank in open_spans
            for piece in _cut(text, start, end, rank, boundary, level)
        ]
        if level == _HEADING:  # sections are always made of paragraphs
            open_spans = spans
            continue
        counts = count_tokens([text[start:end] for start, end, _ in spans])
        open_spans = []
        for (start, end, rank), n in zip(spans, counts, strict=True):
            if n <= max_tokens:
                found.append(_Unit(start, end, n, rank))
            else:
                open_spans.append((start, end, rank))
    while open_spans:  # words without end
        halves = [half for span in open_spans for half in _halves(*span)]
        counts = count_tokens([text[start:end] for start, end, _ in halves])
        open_spans = []
        for (start, end, rank), n in zip(halves, counts, strict=True):
            if n <= max_tokens or end - start == 1:
                found.append(_Unit(start, end, n, rank))
            else:
                open_spans.append((start, end, rank))
    return sorted(found)


def _cut(
    text: str, start: int, end: int, rank: int, boundary: re.Pattern[str], level: int
) -> Iterator[tuple[int, int, int]]:
    """The parts of a span that are not blank, and the ranks of their beginnings."""
    for match in boundary.finditer(text, start, end):
        if text[start : match.end()].strip():
            yield start, match.end(), rank
            rank = level
        start = match.end()
    if text[start:end].strip():
        yield start, end, rank


def _halves(start: int, end: int, rank: int) -> Iterator[tuple[int, int, int]]:
    middle = (start + end) // 2
    if middle > start:
        yield start, middle, rank
        rank = _WITHIN_WORD
    yield middle, end, rank


def _packed(
    units: Sequence[_Unit], max_tokens: int, overlap_tokens: int
) -> Iterator[tuple[_Unit, _Unit]]:
    """The first and the last unit of each passage."""
    start = 0
    while start < len(units):
        end, n_tokens = start + 1, units[start].n_tokens
        while end < len(units) and n_tokens + units[end].n_tokens <= max_tokens:
            # Short sections share a passage; others are about something of their own.
            if units[end].rank == _HEADING and n_tokens >= max_tokens // 4:
                break
            n_tokens += units[end].n_tokens
            end += 1
        if end == len(units):
            yield units[start], units[-1]
            return
        end = _best_end(units, start, end, n_tokens // 2)
        yield units[start], units[end - 1]
        start = _next_start(units, start, end, overlap_tokens)


def _best_end(units: Sequence[_Unit], start: int, end: int, least_tokens: int) -> int:
    """The latest of the best boundaries from which ``least_tokens`` stay before it."""
    best = end
    n_tokens = sum(unit.n_tokens for unit in units[start:end])
    for candidate in range(end - 1, start, -1):
        n_tokens -= units[candidate].n_tokens
        if n_tokens < least_tokens:
            break
        if units[candidate].rank < units[best].rank:
            best = candidate
    return best


def _next_start(units: Sequence[_Unit], start: int, end: int, overlap_tokens: int) -> int:
    begin = end
    while begin - 1 > start and units[begin].rank > _PARAGRAPH:
        overlap_tokens -= units[begin - 1].n_tokens
        if overlap_tokens < 0:
            break
        begin -= 1
    return begin
