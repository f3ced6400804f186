"""GGUF headers: what a good file says, and how a bad one is named before anything is loaded."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.ggml_types import GGML_TYPES
from ferrum_local.llm.gguf_header import (
    MAX_ARRAY_STRINGS_TOTAL,
    Unread,
    check_model_file,
    read_header,
)

MODELS = Path(__file__).parents[2] / "models"
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = MODELS / "test" / "gemma-3-270m.Q4_K_M.gguf"


def make_gguf(path: Path, **strings: str) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")
    writer.add_token_list(["<s>", "</s>", "hé", "模型"])
    writer.add_token_scores([0.0, 1.0, 2.0, 3.0])
    for key, value in strings.items():
        writer.add_string(key.replace("__", "."), value)
    writer.add_tensor("a.weight", np.zeros((3, 64), dtype=np.float32))
    writer.add_tensor("b.weight", np.ones((5, 7), dtype=np.float16))
    writer.add_tensor(
        "c.weight",
        np.zeros((4, 36), dtype=np.uint8),  # two blocks of q4_0 a row
        raw_dtype=gguf.GGMLQuantizationType.Q4_0,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


def message_for(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        check_model_file(path)
    assert "\n" not in caught.value.message
    assert path.name in caught.value.message
    return caught.value.message


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_header_says_what_the_writer_wrote(small: Path) -> None:
    header = check_model_file(small)

    assert header.version == 3
    assert header.architecture == "llama"
    assert (header.context_length, header.block_count) == (2048, 2)
    assert header.chat_template == "{{ messages }}"
    assert header.metadata["llama.rope.freq_base"] == 10000.0
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == Unread("string", 4)
    assert header.metadata["tokenizer.ggml.scores"] == Unread("float32", 4)
    shapes = {t.name: (t.dims, t.size_bytes) for t in header.tensors}
    assert shapes == {
        "a.weight": ((64, 3), 768),
        "b.weight": ((7, 5), 70),
        "c.weight": ((64, 4), 144),
    }
    assert header.expected_size_bytes <= header.file_size_bytes == small.stat().st_size


def test_offsets_and_fields_agree_with_the_gguf_library(small: Path) -> None:
    reader = gguf.GGUFReader(small)

    header = read_header(small)

    assert header.data_offset == reader.data_offset
    assert header.alignment == reader.alignment
    ours = {t.name: (header.data_offset + t.offset, t.size_bytes) for t in header.tensors}
    assert ours == {t.name: (t.data_offset, t.n_bytes) for t in reader.tensors}
    assert set(header.metadata) == {k for k in reader.fields if not k.startswith("GGUF.")}


def test_block_sizes_are_those_of_the_gguf_library() -> None:
    theirs = {
        int(kind): (kind.name, *sizes)
        for kind, sizes in gguf.GGML_QUANT_SIZES.items()
        if int(kind) in GGML_TYPES
    }
    assert theirs == {kind: GGML_TYPES[kind] for kind in theirs}
    assert len(theirs) >= 30


@pytest.mark.skipif(not SMOLLM2.is_file(), reason="starter model not fetched")
def test_the_starter_model_is_whole() -> None:
    header = check_model_file(SMOLLM2)

    assert (header.architecture, header.context_length, header.block_count) == ("llama", 8192, 30)
    assert header.chat_template is not None
    assert header.expected_size_bytes == header.file_size_bytes


@pytest.mark.skipif(not GEMMA.is_file(), reason="test model not fetched")
def test_a_vocabulary_of_262k_tokens_is_stepped_over() -> None:
    header = check_model_file(GEMMA)

    assert header.metadata["tokenizer.ggml.tokens"] == Unread("string", 262_144)
    assert header.chat_template is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>Sign in</html>", "a web page"),
        (b"PK\x03\x04archive/data.pkl", "a zip archive or PyTorch checkpoint"),
        (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "a safetensors file"),
        (b"tjgg\x01\x00\x00\x00", "an old GGML file"),
        (b"\x1f\x8b\x08\x00", "gzip-compressed"),
        (b'{"error": "not found"}', "a JSON file"),
        (b"\0" * 4096, "unfinished download"),
        (b"hello, I am a text", "is not a GGUF file"),
        (b"GG", "is not a GGUF file"),
        (b"GGUF", "cut short"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "is GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "is GGUF version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "does not name its architecture"),
    ],
)
def test_cli_03_a_wrong_file_is_named_for_what_it_is(
    tmp_path: Path, data: bytes, said: str
) -> None:
    assert said in message_for(write(tmp_path / "wrong.gguf", data))


def test_cli_03_missing_files_directories_and_pipes_are_named(tmp_path: Path) -> None:
    assert "no such file" in message_for(tmp_path / "nothing.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert "is a directory" in message_for(tmp_path / "folder.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        assert "not a regular file" in message_for(tmp_path / "pipe.gguf")


def test_a_truncated_file_says_how_much_is_missing(small: Path, tmp_path: Path) -> None:
    header = read_header(small)
    cut = write(tmp_path / "cut.gguf", small.read_bytes()[: header.expected_size_bytes - 100])

    message = message_for(cut)

    assert "is cut short: 100 bytes are missing" in message
    assert f"{header.expected_size_bytes:,}" in message


def test_a_file_without_the_last_padding_is_whole(small: Path, tmp_path: Path) -> None:
    size = read_header(small).expected_size_bytes
    assert check_model_file(write(tmp_path / "tight.gguf", small.read_bytes()[:size]))


def test_an_adapter_or_projector_is_refused_as_a_model(tmp_path: Path) -> None:
    lora = make_gguf(tmp_path / "lora.gguf", general__type="adapter")
    assert "LoRA adapter" in message_for(lora)
    assert read_header(lora).tensor_count == 3


def test_a_split_model_is_accepted_by_its_first_part(tmp_path: Path) -> None:
    parts = []
    for number in range(2):
        path = tmp_path / f"big-0000{number + 1}-of-00002.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(path)

    assert check_model_file(parts[0]).metadata["split.count"] == 2
    assert "part 2 of a split model" in message_for(parts[1])
    parts[1].unlink()
    assert "part 2 is missing" in message_for(parts[0])


def kv(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (kv(b"k", 8, struct.pack("<Q", 1 << 62)), "beyond the end"),
        (kv(b"k", 9, struct.pack("<IQ", 8, 1 << 50)), "beyond the end"),
        (kv(b"k", 9, struct.pack("<IQ", 4, 1 << 50)), "beyond the end"),
        (kv(b"k", 9, struct.pack("<IQ", 9, 1)), "an array of arrays"),
        (kv(b"k", 9, struct.pack("<IQ", 77, 1)), "unknown type 77"),
        (kv(b"k", 13, b""), "unknown value type 13"),
        (kv(b"general.alignment", 4, struct.pack("<I", 3)), "not a power of two"),
        (kv(b"general.alignment", 4, struct.pack("<I", 0)), "not a power of two"),
        (kv(b"x" * 70_000, 0, b"\0"), "70,000 bytes long"),
    ],
)
def test_hostile_metadata_is_refused(tmp_path: Path, entry: bytes, said: str) -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry + bytes(64)
    assert said in message_for(write(tmp_path / "hostile.gguf", data))


def test_an_array_string_that_leaves_the_file_is_refused(tmp_path: Path) -> None:
    strings = struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 1 << 63)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + kv(b"k", 9, struct.pack("<IQ", 8, 2)) + strings
    assert "'k' reaches beyond the end" in message_for(write(tmp_path / "far.gguf", data))


@pytest.mark.parametrize(
    ("dims", "kind", "offset", "said"),
    [
        ((1, 1, 1, 1, 1), 0, 0, "has 5 dimensions"),
        ((33,), 2, 0, "rows of 33 elements"),
        ((32,), 9999, 0, "unknown type 9999"),
        ((32,), 0, 7, "not aligned"),
        ((32,), 0, 1 << 62, "bytes are missing"),
        ((1 << 62,), 0, 0, "bytes are missing"),
        (((1 << 64) - 1, (1 << 64) - 1), 24, 0, "bytes are missing"),
    ],
)
def test_hostile_tensors_are_refused(
    tmp_path: Path, dims: tuple[int, ...], kind: int, offset: int, said: str
) -> None:
    layout = f"<QcI{len(dims)}QIQ"
    tensor = struct.pack(layout, 1, b"t", len(dims), *dims, kind, offset)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(512)
    assert said in message_for(write(tmp_path / "hostile.gguf", data))


def test_keys_and_tensors_must_not_occur_twice(tmp_path: Path) -> None:
    entry = kv(b"k", 0, b"\0")
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2
    assert "'k' occurs twice" in message_for(write(tmp_path / "keys.gguf", data))
    tensor = struct.pack("<QcIQIQ", 1, b"t", 1, 1, 24, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + tensor * 2 + bytes(64)
    assert "'t' occurs twice" in message_for(write(tmp_path / "tensors.gguf", data))


def test_a_type_from_the_future_is_left_for_llama_cpp_to_judge(tmp_path: Path) -> None:
    tensor = struct.pack("<QcIQIQ", 1, b"t", 1, 32, 200, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(512)
    assert read_header(write(tmp_path / "new.gguf", data)).tensors[0].size_bytes is None


def test_a_sparse_file_of_empty_strings_is_refused_without_reading_it(tmp_path: Path) -> None:
    n = 1 << 34
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + kv(b"k", 9, struct.pack("<IQ", 8, n))
    path = write(tmp_path / "sparse.gguf", head)
    os.truncate(path, len(head) + 8 * n)  # 128 GiB of holes: it takes no disk space
    assert n > MAX_ARRAY_STRINGS_TOTAL
    assert "claims 17,179,869,184 strings" in message_for(path)


def test_control_characters_of_a_path_do_not_break_the_line(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_header(tmp_path / "two\nlines\x1b[31m.gguf")
    assert "\n" not in caught.value.message and "\x1b" not in caught.value.message


mutations = st.lists(
    st.tuples(
        st.integers(0, 700),
        st.one_of(
            st.binary(min_size=1, max_size=1),
            st.sampled_from(
                [struct.pack("<Q", n) for n in (0, 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)]
            ),
        ),
    ),
    max_size=6,
)


@settings(max_examples=400, deadline=None)
@given(changes=mutations, keep=st.one_of(st.none(), st.integers(0, 1500)))
def test_any_damage_is_a_model_load_error(
    small: Path, changes: list[tuple[int, bytes]], keep: int | None
) -> None:
    data = bytearray(small.read_bytes())
    for at, new in changes:
        data[at : at + len(new)] = new
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data[:keep])
        file.flush()
        try:
            header = check_model_file(file.name)
        except ModelLoadError as error:
            assert "\n" not in error.message
        else:
            assert header.expected_size_bytes <= header.file_size_bytes
