"""GGUF files of a few hundred bytes: whole headers, and no model behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_header(path: Path, architecture: str = "llama", **metadata: Any) -> Path:
    """A file with ``metadata`` (``__`` stands for a dot; ``A__`` begins the architecture's own)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key.replace("__", ".").replace("A.", f"{architecture}.", 1)
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_split(directory: Path, stem: str, n_parts: int) -> list[Path]:
    """The parts of one model."""
    paths = [directory / f"{stem}-{i:05d}-of-{n_parts:05d}.gguf" for i in range(1, n_parts + 1)]
    for number, path in enumerate(paths):
        write_header(path, split__count=n_parts, split__no=number)
    return paths
