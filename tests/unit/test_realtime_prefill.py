"""Reading ahead, on a scripted engine."""

from __future__ import annotations

import logging

import pytest

from ferrum_local.http.realtime.answer import Asker
from ferrum_local.http.realtime.prefill import Prefill
from ferrum_local.types import ChatPrompt
from tests.fakes import ScriptedEngine, wait_until


def test_what_goes_wrong_while_reading_ahead_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ferrum_local.http.realtime.prefill")
    asker = Asker(
        engine=ScriptedEngine([RuntimeError("the batch broke")]),
        model_id="tiny", client_id="me", session_id="sess_1", metadata={},
    )  # fmt: skip
    prefill = Prefill()
    prefill.offer(asker, ChatPrompt(messages=({"role": "user", "content": "Hi"},)))
    wait_until(lambda: bool(caplog.records))
    assert "the batch broke" in caplog.text
    prefill.close()
