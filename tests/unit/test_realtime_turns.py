"""Where turns of speech begin and end, from probabilities alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.realtime.turns import (
    PAUSE_MS,
    WINDOW_MS,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
    TurnEvent,
    TurnSettings,
)

LOUD, QUIET = 0.9, 0.05


def events(probabilities: list[float], settings: TurnSettings | None = None) -> list[TurnEvent]:
    detector = TurnDetector(settings or TurnSettings())
    return [event for p in probabilities for event in detector.add(p)]


def test_a_turn_has_its_padding_before_and_its_silence_behind_to_the_millisecond() -> None:
    heard = events([QUIET] * 20 + [LOUD] * 30 + [QUIET] * 40)
    voiced_start, voiced_end = 20 * WINDOW_MS, 50 * WINDOW_MS
    assert heard == [
        SpeechStarted(voiced_start - 300),
        SpeechPaused(voiced_end),
        SpeechStopped(voiced_end + 500, voiced_end),
    ]


def test_speech_at_once_begins_at_the_first_sample() -> None:
    assert events([LOUD] * 5)[0] == SpeechStarted(0)


def test_a_click_is_no_speech() -> None:
    assert events([QUIET, LOUD, QUIET, QUIET, LOUD, QUIET] * 10) == []


def test_a_short_pause_is_within_the_turn() -> None:
    pause = [QUIET] * (400 // WINDOW_MS)
    heard = events([LOUD] * 20 + pause + [LOUD] * 20 + [QUIET] * 20)
    assert [type(event) for event in heard] == [
        SpeechStarted, SpeechPaused, SpeechPaused, SpeechStopped,
    ]  # fmt: skip


def test_what_would_not_begin_a_turn_may_go_on_with_it() -> None:
    heard = events([LOUD] * 5 + [0.4] * 100)
    assert heard == [SpeechStarted(0)]


def test_the_next_turn_does_not_begin_within_the_last() -> None:
    settings = TurnSettings(prefix_padding_ms=2_000, silence_duration_ms=200)
    heard = events([LOUD] * 10 + [QUIET] * 10 + [LOUD] * 10, settings)
    stopped = next(e for e in heard if isinstance(e, SpeechStopped))
    assert heard[-1] == SpeechStarted(stopped.end_ms)


@given(
    st.lists(st.floats(0, 1), max_size=300),
    st.integers(0, 1_000),
    st.integers(100, 1_000),
    st.floats(0, 1),
)
def test_turns_follow_each_other_and_never_overlap(
    probabilities: list[float], padding_ms: int, silence_ms: int, threshold: float
) -> None:
    settings = TurnSettings(
        threshold=threshold, prefix_padding_ms=padding_ms, silence_duration_ms=silence_ms
    )
    speaking, last_end_ms = False, 0
    for event in events(probabilities, settings):
        if isinstance(event, SpeechStarted):
            assert not speaking and event.start_ms >= last_end_ms
            speaking, start_ms = True, event.start_ms
        elif isinstance(event, SpeechStopped):
            assert speaking and event.end_ms - event.voiced_end_ms == silence_ms
            assert event.voiced_end_ms > start_ms
            speaking, last_end_ms = False, event.end_ms
        else:
            assert speaking and silence_ms > PAUSE_MS
