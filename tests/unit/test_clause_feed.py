"""Pieces of a text that is still being written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.tts.clause_feed import ClauseFeed
from ferrum_local.tts.clauses import EARLY_CHARS, MAX_PART_CHARS

ANSWER_LIKE = st.text(st.sampled_from("ab 1.,!?*_`[]()-#\n\t—。"), max_size=700) | st.text(
    max_size=80
)


def fed(text: str, *, early: bool = False, step: int = 1) -> list[str]:
    feed = ClauseFeed(early=early)
    pieces = [p for i in range(0, len(text), step) for p in feed.add(text[i : i + step])]
    return pieces + feed.finish()


@given(ANSWER_LIKE, st.booleans(), st.integers(1, 50))
def test_pieces_are_the_text_and_bounded(text: str, early: bool, step: int) -> None:
    pieces = fed(text, early=early, step=step)
    assert "".join(pieces) == text
    assert all(pieces)
    assert max(map(len, pieces), default=0) <= MAX_PART_CHARS + 1


@given(ANSWER_LIKE, st.integers(1, 50))
def test_every_piece_that_is_complete_has_something_to_say(text: str, step: int) -> None:
    pieces = fed(text, step=step)
    assert all(any(c.isalnum() for c in p) for p in pieces[:-1] if len(p) < MAX_PART_CHARS)


def test_a_sentence_comes_with_the_blank_after_it() -> None:
    feed = ClauseFeed()
    assert feed.add("It is 3.") == []
    assert feed.add("5 miles away. You") == ["It is 3.5 miles away. "]
    assert feed.add(" can walk") == []
    assert feed.finish() == ["You can walk"]


def test_the_first_clause_alone_comes_early() -> None:
    text = "Of course, here is one for you, and more. Then, as promised, another."
    assert fed(text, early=True) == [
        "Of course, ", "here is one for you, and more. ", "Then, as promised, another.",
    ]  # fmt: skip
    assert fed(text)[0] == "Of course, here is one for you, and more. "


def test_first_words_without_any_mark_come_early_too() -> None:
    first = ClauseFeed(early=True).add("word " * 30)[0]
    assert EARLY_CHARS - 6 < len(first) <= EARLY_CHARS


@pytest.mark.parametrize(
    "text",
    [
        "This is **very, very. Really** important.",
        "Press *one, two. Three* now.",
        "Call `a, b. c` then.",
        "See [the page, at. Last](https://example.com/a,b.html) there.",
        "It is _so, so. So_ far.",
        "1. Buy milk.",
        "Dr. Who and Mr. Smith.",
    ],
)
def test_nothing_is_cut_within_what_belongs_together(text: str) -> None:
    assert fed(text, early=True) == [text]


def test_lines_are_pieces_and_a_code_fence_goes_with_its_code() -> None:
    text = "# Title\n- first point\n* second **point\n```\nx = 1\n```\n"
    assert fed(text) == [
        "# Title\n", "- first point\n", "* second **point\n", "```\nx = 1\n", "```\n",
    ]  # fmt: skip
