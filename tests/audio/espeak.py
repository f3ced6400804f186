"""Speech in languages that no starter voice speaks, by espeak-ng: its wheel, or its program."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.audio.sounds import as_wav

WORDS_PER_MINUTE = 140
# espeak-ng/speak_lib.h
_SYNCHRONOUS, _UTF_8, _RATE, _BY_CHARACTER = 2, 1, 1, 1
_ON_SAMPLES = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


@functools.cache  # a second time in the same process, espeak-ng speaks a little differently
def espeak_wav(text: str, language: str) -> bytes:
    """``text`` spoken; the test is skipped where espeak-ng is in neither form."""
    try:
        import espeakng_loader
    except ImportError:
        return _by_program(text, language)
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    place = str(Path(espeakng_loader.get_data_path()).parent)
    rate_hz = library.espeak_Initialize(_SYNCHRONOUS, 0, place.encode(), 0)
    assert rate_hz > 0, f"espeak-ng found no data in {place}"
    parts: list[np.ndarray] = []

    @_ON_SAMPLES
    def take(samples: object, n_samples: int, _events: object) -> int:
        if n_samples:
            parts.append(np.ctypeslib.as_array(samples, (n_samples,)).copy())
        return 0

    library.espeak_SetSynthCallback(take)
    assert library.espeak_SetVoiceByName(language.encode()) == 0
    library.espeak_SetParameter(_RATE, WORDS_PER_MINUTE, 0)
    data = text.encode()
    size = ctypes.c_size_t(len(data) + 1)
    assert library.espeak_Synth(data, size, 0, _BY_CHARACTER, 0, _UTF_8, None, None) == 0
    library.espeak_Terminate()
    return as_wav(np.concatenate(parts).astype(np.float32) / 32768, rate_hz)


def _by_program(text: str, language: str) -> bytes:
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("neither the package espeakng-loader nor the program espeak-ng is installed")
    command = [program, "-v", language, "-s", str(WORDS_PER_MINUTE), "--stdout", text]
    return subprocess.run(command, capture_output=True, check=True).stdout
