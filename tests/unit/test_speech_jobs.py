"""Spoken texts and live transcripts as the engine keeps them: their ends, places and counts."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from ferrum_local.audio_types import SpeechRequest
from ferrum_local.engine import live_speech, speech_jobs
from ferrum_local.engine.jobs import FairTurns, Running
from ferrum_local.engine.live_speech import LiveTranscriptionJob
from ferrum_local.engine.speech_jobs import Counts, SpeechJob
from ferrum_local.errors import Cancelled, FerrumError, GenerationFailed, QueueFull
from ferrum_local.stt.live import LiveTranscript
from ferrum_local.tts.synthesis import Utterance
from ferrum_local.tts.voice import Voice

RATE_HZ = 1000


class Beeper:
    """A voice that says each text in one second, or fails."""

    sample_rate_hz = RATE_HZ
    hop_length = 256
    fault: Exception | None = None

    def speaker_id(self, _name: str | None) -> int | None:
        return None

    def speak(self, text: str, **_options: object) -> tuple[np.ndarray[Any, Any], int]:
        if self.fault is not None:
            raise self.fault
        return np.ones(RATE_HZ, np.float32), len(text)


class Desk:
    """Makes jobs for one voice, with room for a single one."""

    def __init__(self) -> None:
        self.voice = Beeper()
        self.counts = Counts()
        self.turns = FairTurns("beeper", n=1, max_waiting=0)
        self.ends: list[FerrumError | None] = []

    def job(self) -> SpeechJob:
        def note(_job: Running, error: FerrumError | None) -> None:
            self.ends.append(error)

        return SpeechJob(
            SpeechRequest(id="a", model_id="beeper", text="One. Two."),
            cast(Voice, self.voice),
            [Utterance(text="One."), Utterance(text="Two.")],
            self.turns,
            self.counts,
            note,
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_ends_well_ends_once_and_gives_its_place_back(desk: Desk) -> None:
    with desk.job() as job:
        assert [part.text for part in job] == ["One.", "Two."]
    assert desk.ends == [None]
    desk.job().close()
    assert [type(end) for end in desk.ends] == [type(None), Cancelled]


def test_a_text_for_which_there_is_no_place_is_refused(desk: Desk) -> None:
    first = desk.job()
    with pytest.raises(QueueFull):
        desk.job()
    first.close()
    desk.job().close()


@pytest.mark.parametrize("fault", [GenerationFailed("It broke."), ZeroDivisionError()])
def test_what_fails_counts_as_failed(desk: Desk, fault: Exception) -> None:
    desk.voice.fault = fault
    with pytest.raises(type(fault)), desk.job() as job:
        list(job)
    assert [type(end) for end in desk.ends] == [GenerationFailed]


class MeanwhileClock:
    """In the place of ``time``: at each look at it another thread adds a second to the counts."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self.n_looks = 0

    def monotonic(self) -> float:
        self.n_looks += 1
        self._counts.add(busy_s=1.0)
        return 0.0


def test_no_time_of_another_text_is_lost_while_one_is_spoken(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MeanwhileClock(desk.counts)
    monkeypatch.setattr(speech_jobs, "time", clock)
    list(desk.job())
    assert desk.counts.busy_s == clock.n_looks > 0
    assert desk.counts.audio_s == 2.0


def test_no_time_of_another_turn_is_lost_while_one_is_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Transcript:
        def text(self, _samples: object) -> str:
            return "Hello."

    counts = Counts()
    clock = MeanwhileClock(counts)
    monkeypatch.setattr(live_speech, "time", clock)
    job = LiveTranscriptionJob(
        cast(LiveTranscript, Transcript()), FairTurns("ear", n=1), counts, lambda: None
    )
    assert job.text(np.zeros(16_000, np.float32), urgent=True) == "Hello."
    assert (counts.busy_s, counts.audio_s) == (clock.n_looks, 1.0)
