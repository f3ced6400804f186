"""Live words that stay, and what a listener has heard of an answer. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.realtime.agreement import AgreedWords
from ferrum_local.http.realtime.playback import SpokenItem

WORDS = st.lists(st.sampled_from(["so", "we", "went", "home,", "then", "out."]), max_size=8)


def test_words_are_sent_once_two_transcripts_agree_on_them() -> None:
    agreed = AgreedWords()
    assert agreed.add("And so my") == ""
    assert agreed.add("And so, my fellow") == "And"
    assert agreed.add("And so, my fellow Americans") == " so, my fellow"
    assert agreed.finish("And so, my fellow Americans.") == " Americans."


def test_words_that_were_sent_are_not_taken_back() -> None:
    agreed = AgreedWords()
    agreed.add("I scream")
    assert agreed.add("I scream") == "I scream"
    assert agreed.finish("Ice cream.") == ""
    assert agreed.sent == "I scream"


@given(st.lists(WORDS, max_size=8), WORDS)
def test_what_was_sent_is_always_what_is_sent_so_far(
    partial: list[list[str]], last: list[str]
) -> None:
    agreed = AgreedWords()
    sent = ""
    for words in partial:
        sent += agreed.add(" ".join(words))
        assert agreed.sent == sent
    final = " ".join(last)
    rest = agreed.finish(final)
    assert sent + rest == final or rest == ""


def spoken() -> SpokenItem:
    item = SpokenItem()
    item.add("Once there was a cat. ", 2_000, 10.0)
    item.add("It slept all day.", 1_000, 10.1)  # sent early, heard after the first
    return item


@pytest.mark.parametrize(
    ("now_s", "heard_ms", "text"),
    [
        (10.0, 0, ""),
        (11.0, 1_000, "Once there"),
        (12.0, 2_000, "Once there was a cat."),
        (12.5, 2_500, "Once there was a cat. It slept"),
        (13.0, 3_000, "Once there was a cat. It slept all day."),
        (99.0, 3_000, "Once there was a cat. It slept all day."),
    ],
)
def test_an_answer_is_heard_at_the_speed_of_speech(now_s: float, heard_ms: int, text: str) -> None:
    item = spoken()
    assert item.heard_ms(now_s) == heard_ms
    assert item.text_until(heard_ms) == text
    assert item.is_playing(now_s) == (now_s < 13.0)


def test_audio_that_comes_late_is_heard_late() -> None:
    item = SpokenItem()
    item.add("One.", 1_000, 10.0)
    item.add(" Two.", 1_000, 20.0)
    assert item.heard_ms(15.0) == 1_000
    assert item.ends_s == 21.0


@given(st.integers(0, 3_000), st.integers(0, 3_000))
def test_who_hears_longer_hears_the_same_beginning(first: int, second: int) -> None:
    item = spoken()
    short, long = sorted((first, second))
    assert item.text_until(long).startswith(item.text_until(short))
