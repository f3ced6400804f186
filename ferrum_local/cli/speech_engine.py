"""An engine for one command: the speech models that the settings name, loaded quietly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ferrum_local.errors import ModelLoadError, ModelNotFound

if TYPE_CHECKING:
    from ferrum_local.engine.facade import LocalEngine


@contextmanager
def speech_engine(
    kind: Literal["transcription", "speech"], argument: str | None
) -> Iterator[LocalEngine]:
    """:param argument: ``--whisper-model`` or ``--voice``; None: as ``serve`` would choose.
    :raises ModelNotFound: there is no such model. ModelLoadError: it cannot be used.
    """
    import msgspec

    from ferrum_local.config import check_speech_files, choose_speech, resolve
    from ferrum_local.engine.facade import LocalEngine

    field = "whisper_model" if kind == "transcription" else "voice"
    flags = {field: (argument,)} if argument else {}
    resolved = resolve(flags, os.environ, cwd=Path.cwd())
    audio = choose_speech(resolved, os.environ, with_starters=True)
    # A command has the machine to itself, as far as it knows.
    n_cores = os.cpu_count() or 1
    if kind == "transcription":
        stt = msgspec.structs.replace(audio.stt, workers=1, threads=audio.stt.threads or n_cores)
        audio = msgspec.structs.replace(audio, voices=(), stt=stt)
    else:
        tts = msgspec.structs.replace(audio.tts, threads=audio.tts.threads or n_cores)
        audio = msgspec.structs.replace(audio, whisper_models=(), tts=tts)
    if not audio:
        flag = "--whisper-model DIR" if kind == "transcription" else "--voice PATH"
        raise ModelNotFound(
            f"There is no {kind} model. Fetch the starter models with `ferrum-local models pull`, "
            f"or give one with {flag}."
        )
    check_speech_files(audio)
    engine = LocalEngine([], audio=audio)
    engine.load()
    try:
        for info in engine.status().models[:1]:
            if info.error is not None:
                raise ModelLoadError(info.error)
        yield engine
    finally:
        engine.close()
