"""What a model's files say of themselves, read without loading it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import msgspec

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.ggml_types import GGML_TYPES
from ferrum_local.llm.gguf_header import (
    POOLING_RANK,
    GgufHeader,
    check_split,
    parts_of,
    read_header,
)
from ferrum_local.stt.files import check_whisper_dir
from ferrum_local.tts.files import check_voice_file, read_voice_config
from ferrum_local.vision.layout import find_clip_files

Kind: TypeAlias = Literal[
    "chat", "embedding", "rerank", "image-embedding", "transcription", "speech",
    "draft", "projector", "lora", "unknown",
]  # fmt: skip
SERVED_KINDS: tuple[Kind, ...] = (
    "chat", "embedding", "rerank", "image-embedding", "transcription", "speech",
)  # fmt: skip
Form: TypeAlias = Literal["gguf", "voice", "whisper", "clip"]

# llama.cpp's ``enum llama_ftype``, the value of ``general.file_type``.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
# Architectures that only make vectors; not all of their files say that they are not causal.
_ENCODERS = frozenset(
    {
        "bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert",
        "neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder",
    }
)  # fmt: skip


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One model on disk.

    ``path`` is its file, the first of a split one, or its directory. ``modified_s``: seconds
    since the epoch. ``context_length``: tokens that it was trained for. ``languages``: codes,
    where the files name them. ``fault``: why it cannot be loaded; the rest is then what could
    still be found out.
    """

    path: str
    kind: Kind = "unknown"
    name: str | None = None  # what its makers call it
    architecture: str | None = None
    quantization: str | None = None
    size_bytes: int = 0
    n_files: int = 1
    n_parameters: int | None = None
    context_length: int | None = None
    license: str | None = None
    languages: tuple[str, ...] = ()
    modified_s: int = 0
    fault: str | None = None


def read_facts(path: str, form: Form) -> ModelFacts:
    """Never raises for what is wrong with the files: it is then in ``fault``."""
    try:
        return _READERS[form](path)
    except ModelLoadError as error:
        fault = error.message.removeprefix(f"{path}: ")
    except OSError as error:  # deleted, or made unreadable, since it was found
        fault = f"cannot be read ({error.strerror or type(error).__name__})"
    kind: Kind = _KIND_OF_FORM.get(form, "unknown")
    return ModelFacts(
        path=path, kind=kind, size_bytes=size_bytes_of(path), modified_s=modified_s_of(path),
        fault=fault,
    )  # fmt: skip


def metadata_of(path: str) -> Mapping[str, str]:
    """Everything that a GGUF file's header says, as text; arrays by their type and length.

    :raises ModelLoadError: it cannot be read.
    """
    return {
        key: value if isinstance(value, str) else str(value)
        if isinstance(value, (bool, int, float)) else f"[{value.length} x {value.type}]"
        for key, value in read_header(path).metadata.items()
    }  # fmt: skip


def gguf_kind(header: GgufHeader) -> Kind:
    """What a GGUF file is for, by its metadata and, for a draft model, by its name."""
    general_type = header.string("general.type")
    architecture = header.architecture
    if general_type == "adapter":
        return "lora"
    if general_type == "mmproj" or architecture == "clip":
        return "projector"
    if architecture is None:
        return "unknown"
    pooling = header.integer(f"{architecture}.pooling_type")
    if pooling == POOLING_RANK:
        return "rerank"
    if pooling or header.makes_vectors_only or architecture in _ENCODERS:
        return "embedding"
    names = f"{header.string('general.name') or ''} {os.path.basename(header.path)}".lower()
    if architecture.startswith("eagle") or "draft" in names:
        return "draft"
    return "chat"


def quantization_of(header: GgufHeader) -> str | None:
    """As the file says, else the type that most of its bytes have."""
    said = header.integer("general.file_type")
    if said is not None and said in _FILE_TYPES:
        return _FILE_TYPES[said]
    size_by_type: Counter[int] = Counter()
    for tensor in header.tensors:
        size_by_type[tensor.ggml_type] += tensor.size_bytes or 0
    if not size_by_type:
        return None
    ((most, _),) = size_by_type.most_common(1)
    return GGML_TYPES[most][0] if most in GGML_TYPES else None


def _gguf(path: str) -> ModelFacts:
    header = read_header(path)
    kind = gguf_kind(header)
    if kind == "unknown":
        raise ModelLoadError("does not name its architecture, so it cannot be loaded")
    check_split(header)
    parts = parts_of(header)
    headers = [header, *(read_header(part) for part in parts[1:])]
    return ModelFacts(
        path=path,
        kind=kind,
        name=header.string("general.name"),
        architecture=header.architecture,
        quantization=quantization_of(header),
        size_bytes=sum(part.file_size_bytes for part in headers),
        n_files=len(parts),
        n_parameters=sum(math.prod(t.dims) for part in headers for t in part.tensors),
        context_length=header.context_length,
        license=header.string("general.license") or header.string("general.license.name"),
        modified_s=modified_s_of(path),
    )


def _voice(path: str) -> ModelFacts:
    check_voice_file(path)
    config = read_voice_config(path)
    language = config.get("language")
    code = language.get("code") if isinstance(language, dict) else None
    return ModelFacts(
        path=path,
        kind="speech",
        name=config["dataset"] if isinstance(config.get("dataset"), str) else None,
        architecture="piper",
        size_bytes=size_bytes_of(path),
        n_files=2,
        languages=(code,) if isinstance(code, str) else (),
        modified_s=modified_s_of(path),
    )


def _whisper(path: str) -> ModelFacts:
    check_whisper_dir(path)
    return ModelFacts(
        path=path,
        kind="transcription",
        architecture="whisper",
        size_bytes=size_bytes_of(path),
        n_files=len(os.listdir(path)),
        languages=("en",) if path.rstrip("/\\").endswith(".en") else (),
        modified_s=modified_s_of(path),
    )


def _clip(path: str) -> ModelFacts:
    files = find_clip_files(path)
    graphs = (files.text_graph, files.vision_graph, files.tokenizer)
    return ModelFacts(
        path=path,
        kind="image-embedding",
        architecture="clip",
        size_bytes=sum(file.stat().st_size for file in graphs),
        n_files=len(graphs),
        context_length=files.max_tokens,
        modified_s=modified_s_of(path),
    )


_READERS: dict[Form, Callable[[str], ModelFacts]] = {
    "gguf": _gguf, "voice": _voice, "whisper": _whisper, "clip": _clip,
}  # fmt: skip
_KIND_OF_FORM: dict[Form, Kind] = {
    "voice": "speech", "whisper": "transcription", "clip": "image-embedding",
}  # fmt: skip


def size_bytes_of(path: str) -> int:
    """Of a file, or of all files that lie directly in a directory; 0 if it cannot be told."""
    try:
        if os.path.isdir(path):
            return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
        return os.stat(path).st_size
    except OSError:
        return 0


def modified_s_of(path: str) -> int:
    """Seconds since the epoch; 0 if it cannot be told."""
    try:
        return int(os.stat(path).st_mtime)
    except OSError:
        return 0
