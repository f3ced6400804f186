"""Texts cut into passages, HTML read as text, excerpts chosen: the pure parts of search."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.search.excerpts import WIDTH, excerpt_for
from ferrum_local.search.html import html_text
from ferrum_local.search.passages import Passage, split_passages


def count_words(texts: Sequence[str]) -> list[int]:
    """A token for each word, and one more for each four letters after the first four."""
    return [sum(1 + (len(word) - 1) // 4 for word in text.split()) for text in texts]


def split(text: str, max_tokens: int = 12, overlap: int = 0) -> list[Passage]:
    return split_passages(text, count_words, max_tokens=max_tokens, overlap_tokens=overlap)


texts = st.lists(
    st.sampled_from(
        ["word", "a", "longerword", "end. ", "?\n", "\n", "\n\n", " ", "# Title\n", "Ünï", "。",
         "x" * 90]
    ),
    max_size=60,
).map("".join) | st.text(max_size=200)  # fmt: skip


@given(texts, st.integers(1, 30), st.integers(0, 10))
def test_passages_hold_all_of_a_text_and_none_is_too_long(
    text: str, max_tokens: int, overlap: int
) -> None:
    lines = text.split("\n")
    covered = [not character.strip() for character in text]
    for passage in split(text, max_tokens, overlap):
        assert passage.text.strip() and not passage.text.startswith("\n")
        # It is on the lines that it says it is on.
        assert passage.text in "\n".join(lines[passage.first_line - 1 : passage.last_line])
        assert passage.text.count("\n") == passage.last_line - passage.first_line
        assert count_words([passage.text])[0] <= max_tokens
        for start in _places(text, passage.text):
            covered[start : start + len(passage.text)] = [True] * len(passage.text)
    assert all(covered)


def _places(text: str, part: str) -> list[int]:
    return [i for i in range(len(text) - len(part) + 1) if text.startswith(part, i)]


@given(texts, st.integers(1, 30))
def test_without_overlap_they_are_the_text_in_order(text: str, max_tokens: int) -> None:
    joined = "".join(passage.text for passage in split(text, max_tokens))
    assert "".join(joined.split()) == "".join(text.split())


def test_short_paragraphs_share_a_passage_and_lines_are_counted_from_one() -> None:
    (only,) = split("\n\none two\n\nthree four\n")
    assert only == Passage("one two\n\nthree four", 3, 5)


def test_a_passage_ends_with_a_paragraph_rather_than_in_the_next() -> None:
    first, second, *_ = split("a b c d e f g\n\nh i j k. l m n o p q r s t. u v w x y z.\n")
    assert first.text == "a b c d e f g"  # although a sentence more would have fitted
    assert second.text.startswith("h i j k.") and second.first_line == 3


def test_a_section_begins_a_passage_with_its_heading() -> None:
    first, second = split("# One\na b c\n\n# Two\nd e f g h\n")
    assert first == Passage("# One\na b c", 1, 2)
    assert second == Passage("# Two\nd e f g h", 4, 5)


def test_an_underlined_heading_begins_a_passage_too() -> None:
    first, second = split("a b c d\n\nTwo\n===\nd e f g h\n")
    assert second == Passage("Two\n===\nd e f g h", 3, 5)


def test_a_long_paragraph_is_cut_between_sentences_and_the_last_is_repeated() -> None:
    text = "A b c d. E f g.\nH i j k. L m n o. P q r s."
    passages = split(text, max_tokens=8, overlap=4)
    assert [p.text for p in passages] == [
        "A b c d. E f g.", "E f g.\nH i j k.", "H i j k. L m n o.", "L m n o. P q r s.",
    ]  # fmt: skip
    assert [p.first_line for p in passages] == [1, 1, 2, 2]


def test_code_keeps_its_indentation_and_a_word_without_end_is_cut() -> None:
    (code,) = split("\n    if x:\n        y()\n")
    assert code == Passage("    if x:\n        y()", 2, 3)
    assert [p.text for p in split("x" * 100, max_tokens=13)] == ["x" * 50, "x" * 50]


def test_a_page_is_text_on_the_lines_where_it_was() -> None:
    page = (
        "<!doctype html>\n<html><head><title>A &amp; B</title>\n<style>p {\n}</style></head>\n"
        "<body><p>One <b>bo</b>ld</p><p>two</p>\n<script>\nlet x = '<p>no</p>';\n</script>\n"
        "<p>last\nline</p></body>"
    )
    assert html_text(page).split("\n") == [
        "", "A & B", "", "", "One bold two", "", "", "", "last", "line",
    ]  # fmt: skip


@given(st.text(max_size=300))
def test_any_page_keeps_its_number_of_lines(page: str) -> None:
    assert html_text(page).count("\n") == page.count("\n")


def test_an_excerpt_is_where_the_words_of_the_query_are() -> None:
    passage = "Nothing here.\n" * 30 + "\nThe keys are asked for at the door.\nMore."
    excerpt = excerpt_for(passage, "who asks for a key?")
    assert (excerpt.line, excerpt.text) == (31, "The keys are asked for at the door. More.")


def test_without_such_words_it_is_the_beginning_cut_between_words() -> None:
    excerpt = excerpt_for("  some\n" + "word " * 100, "zebra")
    assert excerpt.line == 0
    assert excerpt.text.startswith("some word word") and excerpt.text.endswith("word …")


@given(st.text(min_size=1, max_size=600).filter(str.strip), st.text(max_size=20))
def test_an_excerpt_is_one_short_line_of_the_passage(passage: str, query: str) -> None:
    excerpt = excerpt_for(passage, query)
    assert excerpt.text and "\n" not in excerpt.text and len(excerpt.text) <= WIDTH + 2
    assert 0 <= excerpt.line <= passage.count("\n")
