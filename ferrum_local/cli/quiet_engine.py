"""An engine for one command, over models that were found; what it loads is told on a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import TYPE_CHECKING

from ferrum_local.cli.found_models import SPEECH, TRANSCRIPTION, FoundModel
from ferrum_local.errors import ModelLoadError

if TYPE_CHECKING:
    from ferrum_local.engine.facade import LocalEngine
    from ferrum_local.types import LlmOptions

_POLL_S = 0.2


class QuietEngine:
    """Loads the models; a context manager that frees them.

    :raises ModelLoadError: for the first one that cannot be loaded.
    """

    def __init__(self, models: Sequence[FoundModel], options: LlmOptions | None = None) -> None:
        from ferrum_local.audio_types import AudioConfig, SttOptions, TtsOptions
        from ferrum_local.engine.facade import LocalEngine

        for model in models:
            if model.problem is not None:
                raise ModelLoadError(model.problem)
        # A command has the machine to itself, as far as it knows.
        n_cores = os.cpu_count() or 1
        audio = AudioConfig(
            whisper_models=tuple(m.spec for m in models if m.kind == TRANSCRIPTION),
            voices=tuple(m.spec for m in models if m.kind == SPEECH),
            stt=SttOptions(workers=1, threads=n_cores),
            tts=TtsOptions(threads=n_cores),
        )
        specs = [m.spec for m in models if m.kind not in (TRANSCRIPTION, SPEECH)]
        self.engine: LocalEngine = LocalEngine(specs, options, audio=audio)
        progress = _LoadingLine()
        self.engine.watch_loading(progress.show)
        try:
            _interruptibly(self.engine.load)
            for info in self.engine.status().models:
                if info.error is not None:
                    raise ModelLoadError(info.error)
        except BaseException:
            self.close()
            raise
        finally:
            progress.clear()

    def __enter__(self) -> QuietEngine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()


def _interruptibly(work: Callable[[], None]) -> None:
    """Run ``work`` so that Ctrl-C need not wait for the native code in it.

    :raises KeyboardInterrupt: at once; ``work`` goes on until the process ends.
    """
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="load", daemon=True).start()
    while not wait((outcome,), timeout=_POLL_S).done:  # Windows interrupts no longer wait
        pass
    outcome.result()


class _LoadingLine:
    """One line on the terminal that says how far a model is loaded, and goes away."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, model_id: str, percent: int) -> None:
        line = f"Loading {model_id} … {percent} %"
        if line != self._shown and sys.stderr is not None and sys.stderr.isatty():
            self._shown = line
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
