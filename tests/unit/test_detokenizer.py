"""Incremental decoding, and which tokens a piece of text stands for.

The twin here decodes the joined bytes at once and looks up who has bytes in what.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ferrum_local.llm.detokenizer import CharSpan, Detokenizer
from ferrum_local.llm.text_assembler import AssembledText, TextAssembler

# Characters of every length, and all the ways in which bytes can be wrong: lone
# continuation bytes, overlong forms, surrogates, beyond U+10FFFF, cut characters.
FRAGMENTS = st.sampled_from(
    [
        b"a",
        "é".encode(),
        "€".encode(),
        "😀".encode(),
        "\ufffd".encode(),
        "\ufeff".encode(),
        "\U0010ffff".encode(),
        b"\x80",
        b"\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\x80",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5",
        b"\xfe",
        b"\xff",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
        b"\xf0\x9f",
        b"\xc3",
        b"\xed",
        b"\x00",
    ]
)
BYTE_STRINGS = st.one_of(
    st.binary(max_size=24),
    st.lists(FRAGMENTS, max_size=10).map(b"".join),
    st.text(max_size=10).map(lambda text: text.encode("utf-8", "surrogatepass")),
)


@st.composite
def token_lists(draw: st.DrawFn, data: st.SearchStrategy[bytes] = BYTE_STRINGS) -> list[bytes]:
    """Bytes split anywhere, some of the pieces empty."""
    whole = draw(data)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    edges = [0, *cuts, len(whole)]
    return [whole[a:b] for a, b in zip(edges, edges[1:], strict=False)]


class Char(NamedTuple):
    text: str
    start: int  # first byte
    end: int


def characters(data: bytes) -> list[Char]:
    """Decode at once, with each character's place; an unfinished one at the end is dropped."""
    chars: list[Char] = []
    at = 0
    while at < len(data):
        try:
            valid, error = data[at:].decode("utf-8"), None
        except UnicodeDecodeError as e:
            valid, error = data[at : at + e.start].decode("utf-8"), e
        for char in valid:
            chars.append(Char(char, at, at + len(char.encode())))
            at = chars[-1].end
        if error is not None:
            if error.reason == "unexpected end of data":
                break
            chars.append(Char("\ufffd", at, at + error.end - error.start))
            at = chars[-1].end
    return chars


@settings(deadline=None, max_examples=500)
@given(token_lists())
@example([b"\xed", b"\xa0", b"\x80"])
@example([b"\xed", b"\xa0"])
@example([b"\xf0\x9f", b"\xe2\x82", b"A"])
def test_str_09_pieces_decode_as_the_whole_does(tokens: list[bytes]) -> None:
    detokenizer = Detokenizer(tokens.__getitem__)
    texts = [detokenizer.feed(i) for i in range(len(tokens))]
    whole = b"".join(tokens)
    assert "".join(texts) == "".join(char.text for char in characters(whole))
    # The same said without the twin: Python's own answer, less what is cut off at the end.
    expected = whole.decode("utf-8", errors="replace")
    assert "".join(texts) in (expected, expected.removesuffix("\ufffd"))
    finished = [*tokens, b"."]
    detokenizer = Detokenizer(finished.__getitem__)
    texts = [detokenizer.feed(i) for i in range(len(finished))]
    assert "".join(texts) == b"".join(finished).decode("utf-8", errors="replace")
    assert "".join(texts).encode("utf-8").decode("utf-8") == "".join(texts)


@settings(deadline=None, max_examples=300)
@given(token_lists())
def test_str_09_every_character_is_given_as_soon_as_it_is_complete(tokens: list[bytes]) -> None:
    detokenizer = Detokenizer(tokens.__getitem__)
    text = ""
    for i in range(len(tokens)):
        text += detokenizer.feed(i)
        assert text == "".join(char.text for char in characters(b"".join(tokens[: i + 1])))


@settings(deadline=None, max_examples=500)
@given(token_lists())
@example([b"\xe2", b"A"])
@example([b"\xef\xbf", b"\xbd"])
@example([b"\xed", b"\xa0"])
def test_a_span_names_the_characters_that_the_token_has_bytes_in(tokens: list[bytes]) -> None:
    detokenizer = Detokenizer(tokens.__getitem__)
    # One more token completes or ends whatever is open, so that every byte has its character.
    chars = characters(b"".join(tokens) + b"A")
    start = 0
    for i, data in enumerate(tokens):
        detokenizer.feed(i)
        end = start + len(data)
        if data:
            touched = [n for n, char in enumerate(chars) if char.start < end and char.end > start]
            assert detokenizer.last_span == CharSpan(touched[0], touched[-1] + 1)
        else:
            before = characters(b"".join(tokens[:i]))
            is_open = start > (before[-1].end if before else 0)
            assert detokenizer.last_span == CharSpan(len(before), len(before) + is_open)
        start = end


def test_str_09_an_emoji_over_four_tokens_comes_whole_or_not_at_all() -> None:
    tokens = [bytes([byte]) for byte in "😀".encode()]
    detokenizer = Detokenizer(tokens.__getitem__)
    assert [detokenizer.feed(i) for i in range(4)] == ["", "", "", "😀"]


ALPHABET = "ab?é😀"
STOPS = st.lists(st.text(ALPHABET, max_size=4), max_size=3)
TEXT_TOKENS = token_lists(st.text(ALPHABET, max_size=14).map(str.encode))


@settings(deadline=None, max_examples=800)
@given(st.one_of(TEXT_TOKENS, token_lists()), STOPS)
@example([b"x", b"", b"?", b"?"], ["??"])
@example([b"x?", b"", b"?"], ["??"])
@example([b"\xe2", b"A"], ["A"])
def test_assembled_text_and_its_tokens_are_those_of_the_whole(
    tokens: list[bytes], stops: list[str]
) -> None:
    chars = characters(b"".join(tokens))
    text = "".join(char.text for char in chars)
    places = [text.find(stop) for stop in stops if stop and stop in text]
    cut = min(places) if places else len(text)

    assembler = TextAssembler(tokens.__getitem__, stops)
    released = ""
    n_done = n_pushed = 0
    for i in range(len(tokens)):
        result = assembler.push(i)
        n_pushed += 1
        released += result.text
        n_done += result.n_tokens
        if result.stopped:
            break
        # Done are exactly the tokens that have given all their characters.
        assert result.text or not result.n_tokens
        n_bytes = chars[len(released) - 1].end if released else 0
        ends = [len(b"".join(tokens[: k + 1])) for k in range(n_pushed)]
        if result.text:
            assert n_done == sum(end <= n_bytes for end in ends)
        if released:
            assert n_done <= sum(end <= n_bytes for end in ends)
    result = assembler.finish()
    released += result.text
    n_done += result.n_tokens

    assert released == text[:cut]
    assert result.stopped == bool(places)
    if not places:
        assert n_done == len(tokens)
        return
    cut_byte = chars[cut].start
    start = n_kept = 0
    for data in tokens[:n_pushed]:
        n_kept += start < cut_byte if data else start <= cut_byte
        start += len(data)
    assert n_done == n_kept


def test_str_10_a_token_across_the_cut_comes_with_the_last_chunk() -> None:
    tokens = [b"Why", b"? E", b"N", b"D", b" more"]
    assembler = TextAssembler(tokens.__getitem__, ["END"])
    assert assembler.push(0) == AssembledText("Why", 1, False)
    assert assembler.push(1) == AssembledText("? ", 0, False)
    assert assembler.push(2) == AssembledText("", 0, False)
    assert assembler.push(3) == AssembledText("", 1, True)
    assert assembler.push(4) == AssembledText("", 0, True)
    assert assembler.finish() == AssembledText("", 0, True)


def test_str_09_the_tokens_of_a_dropped_tail_are_done_at_the_end() -> None:
    tokens = [b"a", b"\xf0\x9f", b"\x98", b""]
    assembler = TextAssembler(tokens.__getitem__)
    assert assembler.push(0) == AssembledText("a", 1, False)
    for i in (1, 2, 3):
        assert assembler.push(i) == AssembledText("", 0, False)
    assert assembler.finish() == AssembledText("", 3, False)


@pytest.mark.parametrize("stops", [[], ["?"]])
def test_a_token_without_bytes_comes_with_the_next_text(stops: list[str]) -> None:
    tokens = [b"", b"a", b"", b"b"]
    assembler = TextAssembler(tokens.__getitem__, stops)
    assert assembler.push(0) == AssembledText("", 0, False)
    assert assembler.push(1) == AssembledText("a", 2, False)
    assert assembler.push(2) == AssembledText("", 0, False)
    assert assembler.push(3) == AssembledText("b", 2, False)
