"""Texts that are remembered for a while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.transcripts import TranscriptStore


def test_a_text_is_there_until_its_time_is_up() -> None:
    now_s = 1000.5
    store = TranscriptStore(lifetime_s=60.0, clock=lambda: now_s)
    assert store.put("a", "hello") == 1060
    assert (store.get("a"), store.get("b")) == ("hello", None)
    now_s = 1060.5
    assert store.get("a") is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(max_size=9)), max_size=40))
def test_the_oldest_make_room(puts: list[tuple[str, str]]) -> None:
    store = TranscriptStore(max_chars=20)
    latest: dict[str, str] = {}
    for id_, text in puts:
        store.put(id_, text)
        latest.pop(id_, None)
        latest[id_] = text
    kept = {id_: text for id_ in "abcdef" if (text := store.get(id_)) is not None}
    assert sum(len(id_) + len(text) for id_, text in kept.items()) <= 20
    assert list(latest.items())[len(latest) - len(kept) :] == [
        (id_, text) for id_, text in latest.items() if id_ in kept
    ]
    assert all(latest[id_] == text for id_, text in kept.items())
    if puts:
        assert puts[-1][0] in kept
