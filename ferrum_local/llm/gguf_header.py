"""Read the header of a GGUF file in pure Python, before anything heavy is loaded.

A wrong or damaged file is found here in milliseconds, with a sentence that says
what is wrong, instead of deep inside native code. Format: ggml's ``docs/gguf.md``.
Files come from anywhere, so every length is checked against the file's size and a
bound before it is believed.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
from typing import TypeAlias

import msgspec

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.ggml_types import GGML_TYPES, MAX_GGML_TYPE
from ferrum_local.llm.gguf_reader import BadFile, GgufReader, quoted
from ferrum_local.llm.wrong_files import what_it_seems

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)

# Far above any real model (a 262k-token vocabulary, 3,000 tensors), low enough
# that a hostile header costs neither memory nor seconds.
MAX_METADATA_KEYS = 65_536
MAX_TENSORS = 131_072
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 256
MAX_KEPT_STRING_BYTES = 4 << 20
MAX_KEPT_TOTAL_BYTES = 64 << 20
MAX_ARRAY_STRINGS_TOTAL = 4_000_000
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

_SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
POOLING_RANK = 4  # llama_pooling_type of models that score instead of writing
_SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_TYPE_STRING = 8
_TYPE_ARRAY = 9


class Unread(msgspec.Struct, frozen=True):
    """A metadata value that was stepped over: an array, or a very long string.

    ``type`` is the element type of an array (``string``, ``int32``, …) or
    ``string bytes``; ``length`` counts elements or bytes.
    """

    type: str
    length: int


MetadataValue: TypeAlias = bool | int | float | str | Unread


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor. ``offset`` counts from the start of the data section.

    ``dims`` are ggml's: the first is the contiguous one. ``size_bytes`` is None
    for a type that this version does not know.
    """

    name: str
    dims: tuple[int, ...]
    ggml_type: int
    offset: int
    size_bytes: int | None


class GgufHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says about itself, without its weights.

    ``expected_size_bytes`` is the least that the file must have for its tensors to be whole.
    """

    path: str
    version: int
    metadata: dict[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_size_bytes: int
    expected_size_bytes: int

    @property
    def tensor_count(self) -> int:
        return len(self.tensors)

    @property
    def architecture(self) -> str | None:
        """``llama``, ``gemma3``, …; None when the file does not say."""
        return self.string("general.architecture")

    @property
    def context_length(self) -> int | None:
        """Tokens of context that the model was trained for."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def block_count(self) -> int | None:
        """Number of transformer layers."""
        return self.integer(f"{self.architecture}.block_count")

    @property
    def chat_template(self) -> str | None:
        return self.string("tokenizer.chat_template")

    @property
    def makes_vectors_only(self) -> bool:
        """Whether this is an encoder or a rerank model, which cannot write text."""
        return (
            self.metadata.get(f"{self.architecture}.attention.causal") is False
            or self.integer(f"{self.architecture}.pooling_type") == POOLING_RANK
        )

    def string(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Read and check the header of the GGUF file at ``path``.

    Checks the structure and that every tensor lies inside the file. One part of a
    split model is read like any other file.

    :raises ModelLoadError: the file is missing, not a GGUF, of an unsupported
        version, damaged or cut short; the message is one line that names it.
    """
    text = os.fspath(path)
    try:
        if "\0" in text:
            raise BadFile("is not a path: it has a NUL character in it")
        return _read(text)
    except BadFile as bad:
        raise ModelLoadError(f"{_printable(text)}: {bad}") from None
    except FileNotFoundError:
        raise ModelLoadError(f"{_printable(text)}: no such file") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelLoadError(f"{_printable(text)}: cannot be read ({reason})") from None


def check_model_file(path: str | os.PathLike[str]) -> GgufHeader:
    """:func:`read_header`, and refuse files that are whole but not a model to serve.

    :raises ModelLoadError: also for an adapter, a projector, a file without an
        architecture, a later part of a split model, or one whose parts are missing.
    """
    header = read_header(path)
    name = _printable(header.path)
    if header.string("general.type") == "adapter":
        raise ModelLoadError(f"{name}: is a LoRA adapter, not a model")
    if _is_projector(header):
        raise ModelLoadError(f"{name}: is a vision projector (mmproj), not a language model")
    if not header.architecture:
        raise ModelLoadError(f"{name}: does not name its architecture, so it cannot be loaded")
    check_split(header)
    return header


def _is_projector(header: GgufHeader) -> bool:
    return header.architecture == "clip" or header.string("general.type") == "mmproj"


def check_projector_file(path: str | os.PathLike[str]) -> GgufHeader:
    """:func:`read_header`, and refuse files that are no vision projector.

    :raises ModelLoadError: also for a projector for sound alone.
    """
    header = read_header(path)
    name = _printable(header.path)
    if not _is_projector(header):
        raise ModelLoadError(f"{name}: is not a vision projector (mmproj)")
    if header.metadata.get("clip.has_vision_encoder") is not True:
        raise ModelLoadError(f"{name}: is a projector without an encoder for images")
    return header


def check_adapter_file(path: str | os.PathLike[str]) -> GgufHeader:
    """:func:`read_header`, and refuse what is no LoRA adapter.

    :raises ModelLoadError: also for a model, and for a control vector or other adapter.
    """
    header = read_header(path)
    if header.string("general.type") != "adapter" or header.string("adapter.type") != "lora":
        raise ModelLoadError(f"{_printable(header.path)}: is not a LoRA adapter")
    return header


def check_split(header: GgufHeader) -> None:
    """:raises ModelLoadError: a later part of a split model, or one whose parts are missing."""
    name = _printable(header.path)
    n_parts = header.integer("split.count") or 1
    number = (header.integer("split.no") or 0) + 1
    found = _SPLIT_NAME.search(header.path)
    if n_parts < 2 or found is None:
        return
    stem = header.path[: found.start()]
    if number != 1:
        first = _printable(f"{stem}-00001-of-{found[2]}.gguf")
        raise ModelLoadError(
            f"{name}: is part {number} of a split model; give its first part, {first}"
        )
    for number, sibling in enumerate(parts_of(header)[1:], start=2):
        if not os.path.isfile(sibling):
            raise ModelLoadError(
                f"{name}: is a split model of {n_parts} parts, and part {number} is missing "
                f"({_printable(os.path.basename(sibling))})"
            )


def parts_of(header: GgufHeader) -> list[str]:
    """Paths of all files of a model, given its first; one for a model that is not split."""
    n_parts = header.integer("split.count") or 1
    found = _SPLIT_NAME.search(header.path)
    if n_parts < 2 or found is None:
        return [header.path]
    stem = header.path[: found.start()]
    return [f"{stem}-{part:05d}-of-{found[2]}.gguf" for part in range(1, min(n_parts, 99_999) + 1)]


def _read(path: str) -> GgufHeader:
    info = os.stat(path)
    if stat.S_ISDIR(info.st_mode):
        raise BadFile("is a directory; give the path of a .gguf file")
    if not stat.S_ISREG(info.st_mode):
        # Opening a named pipe would wait for a writer.
        raise BadFile("is not a regular file")
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return _parse(path, GgufReader(file, size), size)


def _parse(path: str, reader: GgufReader, size: int) -> GgufHeader:
    head = reader.peek(512)
    if size == 0:
        raise BadFile("is empty (0 bytes)")
    if head[:4] != MAGIC:
        raise BadFile(f"is not a GGUF file{what_it_seems(head, path)}")
    reader.take(4)
    version = reader.u32()
    if version not in SUPPORTED_VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in SUPPORTED_VERSIONS:
            raise BadFile("is a big-endian GGUF file; convert it to little-endian to use it here")
        raise BadFile(
            f"is GGUF version {version}; this program reads versions 2 and 3. "
            "Get a newer conversion of the model"
            if version < 2
            else f"is GGUF version {version}; this program reads versions 2 and 3"
        )
    # The least bytes that one entry takes bound both counts by the file's size.
    n_tensors = reader.count("tensors", MAX_TENSORS, least_bytes=24)
    n_keys = reader.count("metadata entries", MAX_METADATA_KEYS, least_bytes=13)
    metadata = _read_metadata(reader, n_keys)

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise BadFile(f"is damaged: its alignment is {alignment}, which is not a power of two")
    tensors = _read_tensor_infos(reader, n_tensors, alignment)

    data_offset = -(-reader.position // alignment) * alignment
    ends = [data_offset + t.offset + (t.size_bytes or 0) for t in tensors]
    expected = max(ends, default=reader.position)
    if expected > size:
        raise BadFile(
            f"is cut short: {expected - size:,} bytes are missing ({size:,} of {expected:,}). "
            "The download was probably interrupted; fetch it again"
        )
    return GgufHeader(
        path=path,
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_size_bytes=size,
        expected_size_bytes=expected,
    )


def _read_metadata(reader: GgufReader, n_keys: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    kept_bytes = 0
    strings_left = MAX_ARRAY_STRINGS_TOTAL
    for _ in range(n_keys):
        key = reader.string("a metadata key", MAX_KEY_BYTES)
        kept_bytes += len(key)
        if kept_bytes > MAX_KEPT_TOTAL_BYTES:
            raise BadFile("is damaged or hostile: its metadata is too large")
        if key in metadata:
            raise BadFile(f"is damaged: the metadata key {quoted(key)} occurs twice")
        kind = reader.u32()
        value: MetadataValue
        if kind in _SCALARS:
            value = reader.scalar(_SCALARS[kind][1])
        elif kind == _TYPE_STRING:
            length = reader.length(f"the text of {quoted(key)}")
            if length > MAX_KEPT_STRING_BYTES or kept_bytes + length > MAX_KEPT_TOTAL_BYTES:
                reader.skip(length)
                value = Unread("string bytes", length)
            else:
                kept_bytes += length
                value = reader.take(length).decode("utf-8", "replace")
        elif kind == _TYPE_ARRAY:
            value, strings_left = _skip_array(reader, key, strings_left)
        else:
            raise BadFile(f"is damaged: {quoted(key)} has the unknown value type {kind}")
        metadata[key] = value
    return metadata


def _skip_array(reader: GgufReader, key: str, strings_left: int) -> tuple[Unread, int]:
    """Step over an array; returns what it was and how many strings may still follow."""
    kind = reader.u32()
    if kind in _SCALARS:
        name, layout = _SCALARS[kind]
        n = reader.length(f"the array {quoted(key)}", element_bytes=layout.size)
        reader.skip(n * layout.size)
        return Unread(name, n), strings_left
    if kind == _TYPE_STRING:
        n = reader.length(f"the array {quoted(key)}", element_bytes=8)
        if n > strings_left:
            raise BadFile(f"is damaged or hostile: the array {quoted(key)} claims {n:,} strings")
        reader.skip_strings(n, f"the array {quoted(key)}")
        return Unread("string", n), strings_left - n
    what = "an array of arrays" if kind == _TYPE_ARRAY else f"an array of unknown type {kind}"
    raise BadFile(f"is damaged: {quoted(key)} is {what}, which llama.cpp does not read")


def _read_tensor_infos(reader: GgufReader, n: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors = []
    names: set[str] = set()
    for _ in range(n):
        name = reader.string("a tensor name", MAX_TENSOR_NAME_BYTES)
        if name in names:
            raise BadFile(f"is damaged: the tensor {quoted(name)} occurs twice")
        names.add(name)
        n_dims = reader.u32()
        if n_dims > MAX_DIMS:
            raise BadFile(f"is damaged: the tensor {quoted(name)} has {n_dims} dimensions")
        dims = tuple(reader.u64() for _ in range(n_dims))
        ggml_type = reader.u32()
        if ggml_type > MAX_GGML_TYPE:
            raise BadFile(f"is damaged: the tensor {quoted(name)} has the unknown type {ggml_type}")
        offset = reader.u64()
        if offset % alignment:
            raise BadFile(f"is damaged: the tensor {quoted(name)} is not aligned")
        size_bytes = None
        if ggml_type in GGML_TYPES:
            type_name, block, block_bytes = GGML_TYPES[ggml_type]
            if dims and dims[0] % block:
                raise BadFile(
                    f"is damaged: the tensor {quoted(name)} has rows of {dims[0]} elements, "
                    f"not a multiple of the {block} in a block of {type_name}"
                )
            size_bytes = math.prod(dims) // block * block_bytes
        tensors.append(TensorInfo(name, dims, ggml_type, offset, size_bytes))
    return tuple(tensors)


def _printable(path: str) -> str:
    """The path on one line: control characters and lone surrogates escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)
