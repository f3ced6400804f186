"""The files of a Whisper model in CTranslate2's form. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from ferrum_local.errors import ModelLoadError

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
