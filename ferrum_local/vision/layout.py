"""Where the files of a CLIP-family model are, as Hugging Face's ONNX exports lay them out.

Standard library only: wrong directories are found before anything heavy is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ferrum_local.errors import ModelLoadError

# Exports have several precisions of a graph beside each other; the exact one is taken.
_SUFFIXES = ("", "_fp16", "_quantized", "_int8", "_uint8")
_FIXED_LENGTH_TYPES = ("siglip",)  # trained on texts padded to the full length


class ClipFiles(NamedTuple):
    """Paths, and what the JSON files say that matters.

    ``max_tokens``: of a text. ``pads_fully``: texts must be padded to it.
    """

    directory: Path
    text_graph: Path
    vision_graph: Path
    tokenizer: Path
    preprocessor: dict[str, Any]
    max_tokens: int
    pads_fully: bool
    pad_token: str | None


def find_clip_files(directory: str) -> ClipFiles:
    """Look into a model's directory.

    :raises ModelLoadError: something is missing or unreadable; the message names it.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ModelLoadError(f"{directory}: no such directory; it should hold an ONNX export")
    tokenizer = root / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelLoadError(f"{directory}: has no tokenizer.json")
    config = _json(root / "config.json")
    tokenizer_config = _json(root / "tokenizer_config.json")
    text_config = config.get("text_config") or {}
    longest = [tokenizer_config.get("model_max_length"), text_config.get("max_position_embeddings")]
    # A tokenizer without a limit says so with 10 to the power of 30.
    known = [n for n in longest if isinstance(n, int) and 0 < n < 1_000_000]
    pad_token = tokenizer_config.get("pad_token")
    if isinstance(pad_token, dict):
        pad_token = pad_token.get("content")
    return ClipFiles(
        directory=root,
        text_graph=_graph(root, "text_model"),
        vision_graph=_graph(root, "vision_model"),
        tokenizer=tokenizer,
        preprocessor=_json(root / "preprocessor_config.json", required=True),
        max_tokens=min(known, default=77),
        pads_fully=str(config.get("model_type", "")).startswith(_FIXED_LENGTH_TYPES),
        pad_token=pad_token if isinstance(pad_token, str) else None,
    )


def _graph(root: Path, name: str) -> Path:
    for place in (root, root / "onnx"):
        for stem in (f"{name}{suffix}" for suffix in _SUFFIXES):
            path = place / f"{stem}.onnx"
            if path.is_file():
                return path
    raise ModelLoadError(f"{root}: has no {name}.onnx, nor has its directory onnx")


def _json(path: Path, *, required: bool = False) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise ModelLoadError(f"{path.parent}: has no {path.name}") from None
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read ({error})") from None
    if not isinstance(loaded, dict):
        raise ModelLoadError(f"{path}: expected a JSON object")
    return loaded
