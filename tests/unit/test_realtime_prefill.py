"""Reading ahead, on a scripted engine."""

from __future__ import annotations

import logging
import threading

import pytest

from ferrum_local.http.realtime.answer import Asker
from ferrum_local.http.realtime.prefill import Prefill
from ferrum_local.types import ChatPrompt, InferenceRequest
from tests.fakes import ScriptedEngine, ScriptedStream, chunk, wait_until

PROMPT = ChatPrompt(messages=({"role": "user", "content": "Hi"},))
NEVER = threading.Event()


class SlowToStart(ScriptedEngine):
    """Its model is still being loaded when a request comes, until ``gate``."""

    def __init__(self) -> None:
        super().__init__([chunk("Once "), NEVER])
        self.gate = threading.Event()
        self.asked = threading.Event()

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        self.asked.set()
        assert self.gate.wait(10)
        return super().infer_stream(request)


def asker_of(engine: ScriptedEngine) -> Asker:
    return Asker(engine=engine, model_id="tiny", client_id="me", session_id="sess_1", metadata={})


def test_what_goes_wrong_while_reading_ahead_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ferrum_local.http.realtime.prefill")
    asker = asker_of(ScriptedEngine([RuntimeError("the batch broke")]))
    prefill = Prefill()
    prefill.offer(asker, PROMPT)
    wait_until(lambda: bool(caplog.records))
    assert "the batch broke" in caplog.text
    prefill.close()


def test_what_starts_while_the_session_ends_is_not_read() -> None:
    engine = SlowToStart()
    prefill = Prefill()
    prefill.offer(asker_of(engine), PROMPT)
    assert engine.asked.wait(10)
    prefill.close()
    engine.gate.set()
    wait_until(lambda: bool(engine.streams))
    assert engine.streams[0].closed.wait(10)


def test_the_end_of_the_session_ends_what_is_being_read() -> None:
    engine = ScriptedEngine([chunk("Once "), NEVER])
    prefill = Prefill()
    prefill.offer(asker_of(engine), PROMPT)
    wait_until(lambda: prefill._stream is not None)
    prefill.close()
    assert engine.streams[0].closed.wait(10)


def test_one_is_read_at_a_time_and_none_after_the_end() -> None:
    engine = SlowToStart()
    prefill = Prefill()
    for _ in range(3):
        prefill.offer(asker_of(engine), PROMPT)
    assert engine.asked.wait(10)
    prefill.close()
    prefill.offer(asker_of(engine), PROMPT)
    engine.gate.set()
    wait_until(lambda: bool(engine.streams))
    prefill.offer(asker_of(engine), PROMPT)
    assert engine.streams[0].closed.wait(10)
    assert len(engine.streams) == 1
