"""Which models the commands find, by what the files say of themselves."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import pytest

from ferrum_local.cli.embedders import find_model
from ferrum_local.cli.found_models import FoundModel, find_models, model_at
from ferrum_local.cli.models import open_registry
from ferrum_local.config import resolve
from tests.conftest import MINILM, ROOT, SMOLLM2
from tests.engine.tiny_models import write_llama


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not in the checkout, where there are models."""
    monkeypatch.chdir(tmp_path)


def found_in(directory: Path) -> dict[str, FoundModel]:
    env = {"FERRUM_MODELS_DIR": str(directory), "XDG_DATA_HOME": str(directory / "data"),
           "XDG_CACHE_HOME": str(directory / "cache")}  # fmt: skip
    resolved = resolve({}, env, cwd=directory, config=os.devnull)
    return {model.spec.id: model for model in find_models(resolved, env)}


def whisper_directory(directory: Path) -> None:
    directory.mkdir()
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (directory / name).write_text("{}")
    (directory / "model.bin").write_bytes(bytes(1 << 20))


def test_each_kind_is_known_by_its_file(tmp_path: Path) -> None:
    write_llama(tmp_path / "my chat.gguf")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (tmp_path / "notes.txt").write_text("no model")
    projector = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    projector.write_header_to_file()
    projector.write_kv_data_to_file()
    projector.close()
    whisper_directory(tmp_path / "whisper-own")
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "de_DE-x.onnx").write_bytes(bytes(1 << 16))

    found = found_in(tmp_path)

    kinds = {model_id: (m.kind, m.problem is None) for model_id, m in found.items()}
    assert kinds == {
        "my-chat": ("chat", True),
        "torn": ("chat", False),
        "whisper-own": ("transcription", True),
        "de_DE-x": ("speech", False),  # no JSON beside it
    }
    assert "cut short" in (found["torn"].problem or "")
    assert found["whisper-own"].size_bytes > 1 << 20


def test_the_starters_come_first_and_a_link_to_one_is_no_second_model(tmp_path: Path) -> None:
    if not (SMOLLM2.is_file() and MINILM.is_file()):
        return
    for source, name in ((SMOLLM2, SMOLLM2.name), (MINILM, MINILM.name), (SMOLLM2, "a.gguf")):
        (tmp_path / name).symlink_to(source)
    found = found_in(tmp_path)
    assert [(m.kind, m.spec.id) for m in found.values()] == [
        ("chat", SMOLLM2.stem), ("embedding", MINILM.stem)]  # fmt: skip


def test_a_model_is_meant_by_id_alias_or_path(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    whisper_directory(tmp_path / "whisper-own")
    known = tuple(found_in(tmp_path).values())
    assert model_at("tiny", known) in known
    assert model_at(str(tmp_path / "whisper-own"), ()).kind == "transcription"
    assert model_at(str(tmp_path / "tiny.gguf"), ()).kind == "chat"
    missing = model_at(str(tmp_path / "none.onnx"), known)
    assert missing.kind == "speech" and "no such file" in (missing.problem or "")
    assert "no model" in (model_at(str(ROOT / "tests"), known).problem or "")


def test_commands_find_what_a_list_of_models_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of ``--models-dir`` and the usual ones, not one or the other."""
    (tmp_path / "models").mkdir()
    write_llama(tmp_path / "models" / "here.gguf")
    (tmp_path / "more").mkdir()
    write_llama(tmp_path / "more" / "there.gguf")
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("FERRUM_MODELS_DIR", str(tmp_path / "more"))
    listed = [model.id for model in open_registry(()).scan()]
    assert listed == ["there", "here"]
    found = find_models(resolve({}, os.environ, cwd=tmp_path), os.environ)
    assert [model.spec.id for model in found] == listed


def test_an_embedding_model_is_meant_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name wins over a file of that name; ``~`` is the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    for directory in ("models", "home"):
        (tmp_path / directory).mkdir()
        write_llama(tmp_path / directory / f"in-{directory}.gguf")
    (tmp_path / "in-models").write_text("no model")
    assert find_model("in-models").path == str(tmp_path / "models" / "in-models.gguf")
    assert find_model("~/in-home.gguf").path == str(tmp_path / "home" / "in-home.gguf")
