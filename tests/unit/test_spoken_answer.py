"""Text and its speech, side by side, on a scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from ferrum_local.engine.spoken_answer import (
    MAX_PARTS,
    SPEECH_THREAD,
    TEXT_THREAD,
    AnswerAudio,
    AnswerText,
    SpokenAnswer,
)
from ferrum_local.errors import Cancelled, ModelNotFound
from tests.fakes import ScriptedEngine, wait_until
from tests.scripted_voice import BEEP_S, RATE_HZ, SpeakingEngine

WRITTEN = ["Of course", ", here it is. ", "And", " one more."]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    names = (TEXT_THREAD, SPEECH_THREAD)
    wait_until(lambda: not any(t.name in names for t in threading.enumerate()))


class Writer:
    """Pieces of text, as an LLM writes them; stops before ``held`` until ``gate`` is set."""

    def __init__(self, pieces: list[str], *, held: int | None = None) -> None:
        self.gate = threading.Event()
        self.stopped = threading.Event()
        self._pieces = pieces
        self._held = held

    def __iter__(self) -> Iterator[str]:
        for i, piece in enumerate(self._pieces):
            if i == self._held:
                self.gate.wait(10)
            if self.stopped.is_set():
                raise Cancelled("The request was cancelled.")
            yield piece

    def stop(self) -> None:
        self.stopped.set()
        self.gate.set()


def test_text_comes_whole_and_each_clause_is_spoken() -> None:
    with SpokenAnswer(SpeakingEngine(), voice="joe") as answer:
        parts = list(answer.parts(WRITTEN))
    texts = [part.text for part in parts if isinstance(part, AnswerText)]
    spoken = [part for part in parts if isinstance(part, AnswerAudio)]
    assert texts == WRITTEN
    assert [part.text for part in spoken] == ["Of course, ", "here it is. ", "And one more."]
    assert spoken[0].sample_rate_hz == answer.sample_rate_hz == RATE_HZ
    assert spoken[0].samples.dtype == np.float32
    assert len(spoken[0].samples) == round(BEEP_S * RATE_HZ)


def test_the_first_clause_is_heard_while_the_text_is_still_written() -> None:
    writer = Writer(WRITTEN, held=2)
    with SpokenAnswer(SpeakingEngine(), voice="joe") as answer:
        parts = answer.parts(writer, stop_text=writer.stop)
        seen = [next(parts) for _ in range(4)]
        assert [p.text for p in seen if isinstance(p, AnswerAudio)] == [
            "Of course, ",
            "here it is. ",
        ]
        writer.gate.set()
        assert [p.text for p in parts if isinstance(p, AnswerAudio)] == ["And one more."]


def test_text_goes_on_while_the_voice_is_slow() -> None:
    engine = SpeakingEngine(n_free=0)
    with SpokenAnswer(engine, voice="joe") as answer:
        parts = answer.parts(WRITTEN)
        assert [next(parts) for _ in WRITTEN] == [AnswerText(text) for text in WRITTEN]
        engine.gate.set()
        assert len(list(parts)) == 3


def test_what_is_no_text_passes_through_in_its_place() -> None:
    with SpokenAnswer(SpeakingEngine(), voice="joe") as answer:
        parts = list(answer.parts(["One. ", 42, "Two."]))
    assert [p for p in parts if not isinstance(p, AnswerAudio)] == [
        AnswerText("One. "), 42, AnswerText("Two."),
    ]  # fmt: skip


def test_close_from_another_thread_ends_writing_and_speaking() -> None:
    engine = SpeakingEngine(n_free=1)
    writer = Writer(WRITTEN, held=3)
    answer = SpokenAnswer(engine, voice="joe")
    parts = answer.parts(writer, stop_text=writer.stop)
    seen = [next(parts)]
    threading.Thread(target=answer.close).start()
    seen += parts  # ends, though both the voice and the writer are held up
    assert "And one more." not in [p.text for p in seen if isinstance(p, AnswerAudio)]
    assert writer.stopped.is_set()
    assert engine.speeches[0].closed.is_set()
    answer.close()  # twice is fine
    assert list(answer.parts(["never"])) == []


def test_closed_before_it_began_it_stops_the_text() -> None:
    writer = Writer(WRITTEN)
    answer = SpokenAnswer(SpeakingEngine(), voice="joe")
    answer.close()
    assert list(answer.parts(writer, stop_text=writer.stop)) == []
    assert writer.stopped.is_set()


def test_an_error_of_the_writer_comes_after_what_it_wrote() -> None:
    def broken() -> Iterator[str]:
        yield "One. Two"
        raise ModelNotFound("gone")

    with SpokenAnswer(SpeakingEngine(), voice="joe") as answer:
        parts = answer.parts(broken())
        assert next(parts) == AnswerText("One. Two")
        with pytest.raises(ModelNotFound, match="gone"):
            list(parts)


def test_an_error_of_the_voice_stops_the_writer() -> None:
    writer = Writer(WRITTEN, held=3)
    with SpokenAnswer(SpeakingEngine(fails_at=1), voice="joe") as answer:
        with pytest.raises(RuntimeError, match="the voice broke"):
            list(answer.parts(writer, stop_text=writer.stop))
    assert writer.stopped.is_set()


def test_a_slow_caller_holds_the_writer_up() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "word "

    with SpokenAnswer(SpeakingEngine(n_free=0), voice="joe") as answer:
        parts = answer.parts(endless())
        next(parts)
        wait_until(lambda: read == MAX_PARTS + 2)  # one was taken, one waits for its place
        next(parts)
        wait_until(lambda: read == MAX_PARTS + 3)


def test_leaving_half_way_ends_all() -> None:
    engine = SpeakingEngine()
    writer = Writer(["word. "] * 1000)
    with SpokenAnswer(engine, voice="joe") as answer:
        for _part in answer.parts(writer, stop_text=writer.stop):
            break
    assert writer.stopped.is_set()
    assert engine.speeches[0].closed.is_set()


def test_without_a_voice_it_is_refused_at_once() -> None:
    with pytest.raises(ModelNotFound):
        SpokenAnswer(ScriptedEngine(), voice=None)
