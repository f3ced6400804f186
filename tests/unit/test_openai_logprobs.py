"""Log-probabilities in chat's and completions' shapes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.openai.logprobs import (
    LegacyLogprobs,
    chat_logprobs,
    joined,
    mean_logprob,
    prompt_text,
)
from ferrum_local.types import TokenLogprob, TopLogprob


def token(data: bytes, logprob: float | None = -1.0, *top: TopLogprob) -> TokenLogprob:
    return TokenLogprob(token_id=1, bytes=data, logprob=logprob, top=top)


def test_chat_19_entries_have_token_bytes_logprob_and_alternatives() -> None:
    (entry,) = chat_logprobs([token(b"hi", -0.5, TopLogprob(7, b"yo", -2.0))]).content
    assert (entry.token, entry.bytes, entry.logprob) == ("hi", [104, 105], -0.5)
    assert [(t.token, t.bytes, t.logprob) for t in entry.top_logprobs] == [("yo", [121, 111], -2.0)]


def test_half_a_character_keeps_its_bytes() -> None:
    (entry,) = chat_logprobs([token(b"\xf0\x9f")]).content
    assert (entry.token, entry.bytes) == ("�", [0xF0, 0x9F])
    legacy = LegacyLogprobs().add([token(b"\xf0\x9f"), token(b"\x98\x80"), token(b"!")])
    assert legacy.tokens == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "!"]
    assert legacy.text_offset == [0, 0, 1]


def test_minus_infinity_becomes_a_number() -> None:
    assert chat_logprobs([token(b"a", -math.inf)]).content[0].logprob == -9999.0


def test_the_legacy_alternatives_always_have_the_chosen_token() -> None:
    written = LegacyLogprobs().add(
        [token(b"a", -3.0, TopLogprob(7, b"b", -0.1)), token(b"c", -0.2, TopLogprob(8, b"c", -0.2))]
    )
    assert written.top_logprobs == [{"b": -0.1, "a": -3.0}, {"c": -0.2}]


def test_an_echoed_prompts_offsets_skip_what_is_not_in_its_text() -> None:
    prompt = [token(b"<bos>", None), token(b"Hi", -1.0), token(b" you", -2.0)]
    writer = LegacyLogprobs()
    written = writer.prompt(prompt, "Hi you")
    assert written.token_logprobs == [None, -1.0, -2.0]
    assert written.top_logprobs[0] is None
    assert written.text_offset == [0, 0, 2]
    assert writer.add([token(b"!")]).text_offset == [6]


def test_the_text_of_token_ids_is_their_bytes() -> None:
    assert prompt_text([token(b"\xf0\x9f", None), token(b"\x98\x80")]) == "😀"


def test_best_of_ranks_by_the_mean() -> None:
    assert mean_logprob([token(b"a", -1.0), token(b"b", -3.0)]) == -2.0
    assert mean_logprob([]) == 0.0


PIECES = st.lists(st.binary(min_size=1, max_size=4), max_size=12)


@given(PIECES, st.integers(0, 12))
def test_chunked_entries_join_to_the_whole(pieces: list[bytes], cut: int) -> None:
    entries = [token(p) for p in pieces]
    writer = LegacyLogprobs()
    parts = joined(writer.add(entries[:cut]), writer.add(entries[cut:]))
    assert parts == LegacyLogprobs().add(entries)


@given(st.lists(st.text(min_size=1, max_size=4), max_size=12))
def test_offsets_are_where_tokens_begin_in_the_text(texts: list[str]) -> None:
    written = LegacyLogprobs().add([token(t.encode()) for t in texts])
    whole = "".join(texts)
    for text, offset in zip(texts, written.text_offset, strict=True):
        assert whole[offset : offset + len(text)] == text
