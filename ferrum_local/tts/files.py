"""The files of a Piper voice. Imports nothing heavy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ferrum_local.errors import ModelLoadError

_MIN_MODEL_BYTES = 1 << 16


def check_voice_file(path: str) -> None:
    """Look whether ``path`` and its JSON can be a voice, in milliseconds.

    :raises ModelLoadError: with what is missing.
    """
    if not os.path.isfile(path):
        what = "is a directory; the .onnx file is wanted" if os.path.isdir(path) else "no such file"
        raise ModelLoadError(f"{path}: {what}")
    if os.path.getsize(path) < _MIN_MODEL_BYTES:
        raise ModelLoadError(f"{path}: is too small to be a Piper voice; fetch it again")
    read_voice_config(path)


def read_voice_config(path: str) -> dict[str, Any]:
    """The JSON beside the voice.

    :raises ModelLoadError: it is missing or is no voice's.
    """
    config_path = f"{path}.json"
    try:
        config = json.loads(Path(config_path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(
            f"{config_path}: cannot be read ({error.strerror}); a Piper voice is an .onnx file "
            "with its .onnx.json beside it"
        ) from error
    except ValueError as error:
        raise ModelLoadError(f"{config_path}: is not valid JSON: {error}") from error
    needed = ("audio", "espeak", "num_symbols", "num_speakers", "phoneme_id_map")
    missing = [k for k in needed if not isinstance(config, dict) or k not in config]
    if missing:
        raise ModelLoadError(f"{config_path}: is no Piper voice: no {', '.join(missing)}")
    return dict(config)
