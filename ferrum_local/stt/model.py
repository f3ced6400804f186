"""A Whisper model in CTranslate2's form: its files, and loading them without any network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ferrum_local.audio_types import SttOptions
from ferrum_local.errors import ModelLoadError

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

NEEDED_FILES = ("model.bin", "config.json", "tokenizer.json")
VOCABULARIES = ("vocabulary.txt", "vocabulary.json")
_MIN_MODEL_BYTES = 1 << 20


def check_whisper_dir(path: str) -> None:
    """Look whether ``path`` can be a model, in milliseconds.

    :raises ModelLoadError: with the file that is missing.
    """
    directory = Path(path)
    if not directory.is_dir():
        what = (
            "is a file; the directory with model.bin is wanted"
            if directory.exists()
            else ("no such directory")
        )
        raise ModelLoadError(f"{path}: {what}. Whisper models are CTranslate2 directories")
    missing = [name for name in NEEDED_FILES if not (directory / name).is_file()]
    if not any((directory / name).is_file() for name in VOCABULARIES):
        missing.append(" or ".join(VOCABULARIES))
    if missing:
        raise ModelLoadError(f"{path}: is no CTranslate2 Whisper model: no {', '.join(missing)}")
    if (directory / "model.bin").stat().st_size < _MIN_MODEL_BYTES:
        raise ModelLoadError(f"{path}: model.bin is too small to be a model; fetch it again")


def model_size_bytes(path: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())


def n_threads(options: SttOptions) -> int:
    """Half of the cores for one transcription, so that chat is not choked by it."""
    return options.threads or max(1, _n_cores() // 2)


def n_workers(options: SttOptions) -> int:
    """Two at once: a short recording need not wait for a long one."""
    return options.workers or min(2, _n_cores())


def load_whisper(path: str, options: SttOptions) -> WhisperModel:
    """:raises ModelLoadError: the files are no model, or damaged."""
    check_whisper_dir(path)
    import ctranslate2
    from faster_whisper import WhisperModel

    on_gpu = ctranslate2.get_cuda_device_count() > 0
    try:
        return WhisperModel(
            path,  # an existing directory: nothing is ever looked up on a hub
            device="cuda" if on_gpu else "cpu",
            compute_type="default" if on_gpu else "int8",
            cpu_threads=n_threads(options),
            num_workers=n_workers(options),
            local_files_only=True,
        )
    except Exception as error:  # CTranslate2 and tokenizers raise plain ones for bad files
        raise ModelLoadError(f"{path}: {error}") from error


def _n_cores() -> int:
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1
