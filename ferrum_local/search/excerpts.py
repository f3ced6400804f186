"""The few lines of a passage that a person wants to see. No files, no model."""

from __future__ import annotations

import re
from typing import NamedTuple

WIDTH = 240  # characters
_ENDING = re.compile(r"(?:ing|ed|es|s)$")  # ask, asks, asked and asking are one


class Excerpt(NamedTuple):
    """``line``: where it begins, from 0 for the passage's first. ``text`` has no line breaks."""

    line: int
    text: str


def excerpt_for(passage: str, query: str, width: int = WIDTH) -> Excerpt:
    """The part of ``passage`` with most words of ``query``; else its beginning.

    It begins with a line of the passage and is at most ``width`` characters long, after which
    an ellipsis says that the passage goes on.
    """
    wanted = _stems(query)
    lines = passage.split("\n")

    def n_found(i: int) -> tuple[int, int]:
        """Of the words, in the excerpt that begins with line ``i``, and in that line."""
        excerpt = _shortened(lines[i:], width)
        return len(wanted & _stems(excerpt)), len(wanted & _stems(lines[i]))

    best = max((i for i, line in enumerate(lines) if line.strip()), key=n_found)
    return Excerpt(best, _shortened(lines[best:], width))


def _stems(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {_ENDING.sub("", word) for word in words if len(word) > 2 or not word.isascii()}


def _shortened(lines: list[str], width: int) -> str:
    whole = ""
    for line in lines:
        whole = f"{whole} {' '.join(line.split())}".strip()
        if len(whole) > width:
            cut = whole[: width + 1].rpartition(" ")[0] or whole[:width]
            return f"{cut[:width]} …"
    return whole
