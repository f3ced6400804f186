"""A scripted engine that takes its orders from the request and the model's path.

It lives in a server process that a test started, out of the test's reach; files are the
gates that the test opens.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ferrum_local.errors import ModelLoadError
from ferrum_local.types import ChatPrompt, FinishReason, InferenceRequest, LlmOptions, ModelSpec
from tests.fakes import HELLO, POLL_S, ScriptedEngine, ScriptedStream, Step, chunk, model_info

FACTORY = "tests.prompted_engine:PromptedEngine"


class FileGate(threading.Event):
    """Set once ``path`` exists."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def wait(self, timeout: float | None = None) -> bool:
        return self._path.exists() or (super().wait(timeout) and False)


class DeafGate(threading.Event):
    """Blocks for good and does not notice a cancel, as a stuck native call does."""

    def wait(self, timeout: float | None = None) -> bool:
        while True:
            time.sleep(3600)


def die() -> None:
    """Crash as native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    threading.Event().wait()  # another thread may take the signal; no more is done by this one


def steps_for(order: str) -> tuple[Step, ...]:
    """What ``order``, a chat message, makes of its own request."""
    word, _, argument = order.partition(" ")
    end = chunk("", finish=FinishReason.STOP)
    if word == "wait":  # for a file
        return (chunk("before"), FileGate(argument), chunk("after"), end)
    if word == "forever":
        return (chunk("tick"), threading.Event(), end)
    if word == "deaf":
        return (chunk("tick"), DeafGate(), end)
    if word == "bug":
        return (RuntimeError(order),)
    if word == "flood":  # with so many bytes
        return (chunk("x" * int(argument)), end)
    if word == "crash":
        die()
    return HELLO


class PromptedEngine(ScriptedEngine):
    """``path`` of the first model: ``ok``, ``broken``, ``bug``, ``die`` or ``wait FILE``."""

    def __init__(
        self, models: Sequence[ModelSpec], options: LlmOptions, *, any_model_name: bool = False
    ) -> None:
        super().__init__(state="loading", models=[model_info(m.id, kind=m.kind) for m in models])
        self._order = models[0].path
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def import_for_load(self) -> bool:
        return True  # so that a worker loads it early, as it does most models

    def load(self) -> None:
        with self._loading:  # a load in native code cannot be hurried
            self._load()

    def _load(self) -> None:
        self.on_loading(self.models[0].id, 0)
        word, _, argument = self._order.partition(" ")
        if word == "broken":
            self.state = "failed"
            raise ModelLoadError("tiny.gguf is not a GGUF file.")
        if word == "bug":
            raise ValueError("a bug")
        if word == "die":
            die()
        if word == "wait":
            gate = FileGate(argument)
            while not gate.wait(POLL_S):
                pass
        self.on_loading(self.models[0].id, 100)
        if self.state == "loading":
            self.state = "ready"

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        assert isinstance(request.prompt, ChatPrompt)
        with self._lock:
            self.script = steps_for(str(request.prompt.messages[-1]["content"]))
            return super().infer_stream(request)

    def close(self, *, grace_s: float = 0.0) -> None:
        deadline_s = time.monotonic() + grace_s
        while self._running and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        with self._loading:
            super().close(grace_s=0.0)
