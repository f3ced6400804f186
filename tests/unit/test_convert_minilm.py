"""The starter embedding model's conversion to GGUF, and what it gives beside the reference."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import convert_minilm
from ferrum_local.llm import starter_embedding
from ferrum_local.llm.gguf_header import read_header
from ferrum_local.llm.starter_embedding import (
    ConversionError,
    convert,
    gguf_tensor_name,
    gguf_token,
    is_converted,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "models" / starter_embedding.SOURCE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embeddings.word_embeddings.weight", "token_embd.weight"),
        ("embeddings.LayerNorm.bias", "token_embd_norm.bias"),
        ("encoder.layer.11.attention.self.query.weight", "blk.11.attn_q.weight"),
        ("encoder.layer.0.attention.output.LayerNorm.weight", "blk.0.attn_output_norm.weight"),
        ("encoder.layer.5.output.dense.bias", "blk.5.ffn_down.bias"),
        ("embeddings.position_ids", None),
        ("pooler.dense.weight", None),
    ],
)
def test_tensors_get_llama_cpps_names(name: str, expected: str | None) -> None:
    assert gguf_tensor_name(name) == expected


@pytest.mark.parametrize("name", ["decoder.layer.0.output.dense.bias", "classifier.weight"])
def test_a_tensor_of_another_architecture_is_refused(name: str) -> None:
    with pytest.raises(ConversionError, match=name):
        gguf_tensor_name(name)


def test_tokens_mark_beginnings_instead_of_continuations() -> None:
    assert gguf_token("hello", is_special=False) == "\u2581hello"
    assert gguf_token("##ing", is_special=False) == "ing"
    assert gguf_token("[CLS]", is_special=True) == "[CLS]"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SOURCE.is_dir():
        pytest.skip("all-MiniLM-L6-v2 is not here: run `make setup`")
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(SOURCE, models / starter_embedding.SOURCE, symlinks=True)
    assert convert(models)
    return models


def test_both_files_are_made_and_nothing_else(converted: Path) -> None:
    assert sorted(p.name for p in converted.iterdir()) == [
        "all-minilm-l6-v2.f16.gguf", "all-minilm-l6-v2.q8_0.gguf", "src",
    ]  # fmt: skip
    header = read_header(converted / "all-minilm-l6-v2.q8_0.gguf")
    assert header.architecture == "bert"
    assert header.integer("bert.pooling_type") == 1  # mean
    assert header.context_length == 512


def test_what_is_in_place_is_left_alone(converted: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in converted.glob("*.gguf")}
    assert not convert(converted)
    assert before == {p: p.stat().st_mtime_ns for p in converted.glob("*.gguf")}


def test_a_file_that_is_cut_short_is_made_again(converted: Path) -> None:
    path = converted / "all-minilm-l6-v2.q8_0.gguf"
    os.truncate(path, path.stat().st_size // 2)
    assert not is_converted(path)
    assert convert(converted)
    assert is_converted(path)


def test_a_missing_source_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert_minilm.main(["--models-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "models pull" in error and error.count("\n") == 1


def test_a_failed_quantization_leaves_no_half_file(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").symlink_to(converted / "src")

    def fail(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise ConversionError("no space")

    monkeypatch.setattr(starter_embedding, "quantize_q8_0", fail)
    with pytest.raises(ConversionError, match="no space"):
        convert(tmp_path)
    assert [p.name for p in tmp_path.glob(".*.part")] == []
    assert [p.name for p in tmp_path.glob("*.gguf")] == ["all-minilm-l6-v2.f16.gguf"]
