"""Where the files of a CLIP-family model are, as Hugging Face's ONNX exports lay them out.

Standard library only: wrong directories are found before anything heavy is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ferrum_local.errors import ModelLoadError

# Exports have several precisions of a graph beside each other; the exact one is taken.
_SUFFIXES = (
    "", "_optimized", "_fp16", "_quantized", "_int8", "_uint8", "_q4", "_q4f16", "_bnb4",
)  # fmt: skip
_BOTH = "model"  # the graph of exports that are not split
# SigLIP was trained on texts in small letters, padded to the full length, without a mask.
_SIGLIP = "siglip"
_DEFAULT_TOKENS = {False: 77, True: 64}  # of CLIP and of SigLIP, whose configs may leave it out


class ClipFiles(NamedTuple):
    """Paths, and what the JSON files say that matters.

    ``text_graph`` and ``vision_graph`` are the same file where the export is not split.
    ``max_tokens``: of a text. ``pads_fully``: texts must be padded to it. ``lowercases``: before
    the tokenizer sees them.
    """

    directory: Path
    text_graph: Path
    vision_graph: Path
    tokenizer: Path
    preprocessor: dict[str, Any]
    max_tokens: int
    pads_fully: bool
    lowercases: bool
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
    is_siglip = str(config.get("model_type", "")).startswith(_SIGLIP)
    text_graph, vision_graph = _graphs(root)
    return ClipFiles(
        directory=root,
        text_graph=text_graph,
        vision_graph=vision_graph,
        tokenizer=tokenizer,
        preprocessor=_preprocessor(root),
        max_tokens=min(known, default=_DEFAULT_TOKENS[is_siglip]),
        pads_fully=is_siglip,
        lowercases=is_siglip or tokenizer_config.get("do_lower_case") is True,
        pad_token=pad_token if isinstance(pad_token, str) else None,
    )


def _graphs(root: Path) -> tuple[Path, Path]:
    """Of texts and of images. The two of a split export do no more than is asked for."""
    text, vision = _graph(root, "text_model"), _graph(root, "vision_model")
    if text is not None and vision is not None:
        return text, vision
    both = _graph(root, _BOTH)
    if both is not None:
        return both, both
    missing = "text_model" if text is None else "vision_model"
    raise ModelLoadError(
        f"{root}: has no {missing}.onnx (nor a {_BOTH}.onnx of both), nor has its directory onnx"
    )


def _graph(root: Path, name: str) -> Path | None:
    for place in (root, root / "onnx"):
        for stem in (f"{name}{suffix}" for suffix in _SUFFIXES):
            path = place / f"{stem}.onnx"
            if path.is_file():
                return path
    return None


def _preprocessor(root: Path) -> dict[str, Any]:
    """Of images; newer exports have it within the configuration of the whole processor."""
    processor = _json(root / "processor_config.json").get("image_processor")
    if isinstance(processor, dict) and not (root / "preprocessor_config.json").exists():
        return processor
    return _json(root / "preprocessor_config.json", required=True)


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
