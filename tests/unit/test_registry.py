"""Models found in directories: what they are, what they are called, and what is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.model_names import RESERVED, is_model_name
from ferrum_local.registry import registry as registry_module
from ferrum_local.registry.facts import ModelFacts, read_facts
from ferrum_local.registry.files import Candidate
from ferrum_local.registry.registry import (
    RegisteredModel,
    Registry,
    find,
    named,
    without_quantization,
)
from tests.tiny_gguf import write_header, write_split


def scan(*directories: Path, cache: Path | None = None) -> dict[str, RegisteredModel]:
    registry = Registry(
        tuple(map(str, directories)), cache_path=None if cache is None else str(cache)
    )
    return {model.id: model for model in registry.scan()}


@pytest.mark.parametrize(
    ("architecture", "metadata", "kind"),
    [
        ("llama", {}, "chat"),
        ("bert", {}, "embedding"),
        ("nomic-bert", {"A__attention__causal": False}, "embedding"),
        ("qwen3", {"A__pooling_type": 3}, "embedding"),
        ("qwen3", {"A__pooling_type": 0}, "chat"),
        ("bert", {"A__pooling_type": 4}, "rerank"),
        ("clip", {}, "projector"),
        ("qwen2vl", {"general__type": "mmproj"}, "projector"),
        ("llama", {"general__type": "adapter", "adapter__type": "lora"}, "lora"),
        ("qwen3", {"general__name": "Qwen3 DRAFT 0.6B"}, "draft"),
        ("eagle3", {}, "draft"),
    ],
)
def test_kinds_are_told_by_metadata(
    tmp_path: Path, architecture: str, metadata: dict[str, object], kind: str
) -> None:
    path = write_header(tmp_path / "m.gguf", architecture, **metadata)
    assert read_facts(str(path), "gguf").kind == kind


def test_facts_of_a_model(tmp_path: Path) -> None:
    path = write_header(
        tmp_path / "m.gguf", general__file_type=15, general__license="mit",
        general__name="My Model", A__context_length=4096,
    )  # fmt: skip
    facts = read_facts(str(path), "gguf")
    assert (facts.quantization, facts.license, facts.name) == ("Q4_K_M", "mit", "My Model")
    assert (facts.context_length, facts.n_parameters) == (4096, 128)
    assert facts.size_bytes == path.stat().st_size
    plain = write_header(tmp_path / "plain.gguf")
    assert read_facts(str(plain), "gguf").quantization == "F32"  # by what it is made of


def test_cli_03_odd_names_and_places(tmp_path: Path) -> None:
    places = [
        "Željko Ž/模型 dir/m.gguf",
        "a b/c d.gguf",
        "UPPER.GGUF",
        "e=f.gguf",
        "模型.Q8_0.gguf",
    ]
    for place in places:
        write_header(tmp_path / place)
    models = scan(tmp_path)
    assert set(models) == {"m", "c-d", "UPPER", "e-f", "模型.Q8_0"}
    assert models["m"].path == str(tmp_path / places[0])
    assert models["模型.Q8_0"].aliases == ("模型",)
    assert all(model.is_served for model in models.values())


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big.Q4_0", 3)
    model = scan(tmp_path)["big.Q4_0"]
    assert (model.path, model.n_files, model.aliases) == (str(parts[0]), 3, ("big",))
    assert model.size_bytes == sum(part.stat().st_size for part in parts)
    parts[1].unlink()
    (model,) = scan(tmp_path).values()
    assert model.fault is not None and "part 2 is missing" in model.fault
    parts[0].unlink()
    (model,) = scan(tmp_path).values()
    assert model.fault is not None and "is part 3 of a split model" in model.fault


def test_links_are_other_names_of_one_model(tmp_path: Path) -> None:
    real = write_header(tmp_path / "store" / "real.gguf")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link.gguf").symlink_to(real)
    (tmp_path / "models" / "round").symlink_to(tmp_path)
    os.link(real, tmp_path / "models" / "twin.gguf")
    (model,) = scan(tmp_path / "models", tmp_path).values()
    assert {model.id, *model.aliases} == {"real", "link", "twin"}
    assert not os.path.islink(model.path)


def test_broken_files_are_listed_with_their_fault(tmp_path: Path) -> None:
    whole = write_header(tmp_path / "whole.gguf")
    (tmp_path / "page.gguf").write_text("<html>Sign in</html>")
    (tmp_path / "cut.gguf").write_bytes(whole.read_bytes()[:-64])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nothing")
    (tmp_path / "joe.onnx").touch()
    (tmp_path / "joe.onnx.json").write_text("{}")
    (tmp_path / "whisper").mkdir()
    (tmp_path / "whisper" / "model.bin").touch()
    (tmp_path / "whisper" / "config.json").touch()
    models = scan(tmp_path)
    faults = {id_: model.fault for id_, model in models.items() if model.fault}
    assert set(models) - set(faults) == {"whole"}
    for id_, text in {
        "page": "a web page", "cut": "cut short", "empty": "is empty", "dangling": "no such file",
        "joe": "too small", "whisper": "no tokenizer.json",
    }.items():  # fmt: skip
        assert text in (faults[id_] or ""), id_
    assert (models["joe"].kind, models["whisper"].kind) == ("speech", "transcription")


def test_what_is_no_model_is_passed_over(tmp_path: Path) -> None:
    write_header(tmp_path / ".hidden.gguf")
    write_header(tmp_path / ".download" / "x.gguf")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "graph.onnx").touch()  # without a voice's JSON
    (tmp_path / "dir.gguf").mkdir()
    assert scan(tmp_path, tmp_path / "none", tmp_path / "notes.txt") == {}


def test_the_first_directory_wins_a_name_and_the_second_still_can_be_asked(tmp_path: Path) -> None:
    first = write_header(tmp_path / "one" / "m.gguf")
    second = write_header(tmp_path / "two" / "m.gguf")
    third = write_header(tmp_path / "deep" / "two" / "m.gguf")
    models = scan(first.parent, second.parent, third.parent)
    assert {id_: model.path for id_, model in models.items()} == {
        "m": str(first), "two/m": str(second), "two/m-2": str(third)
    }  # fmt: skip


def test_a_name_that_would_mean_two_models_means_none(tmp_path: Path) -> None:
    for name in ("m.Q8_0", "m.Q4_0", "n.Q8_0"):
        write_header(tmp_path / f"{name}.gguf")
    models = scan(tmp_path)
    assert [model.aliases for model in models.values()] == [(), (), ("n",)]


def test_names_that_are_taken_are_not_given(tmp_path: Path) -> None:
    path = write_header(tmp_path / "dir" / "m.Q8_0.gguf")
    registry = Registry((str(path.parent),))
    (model,) = registry.scan(reserved={"m.Q8_0", "m"})
    assert (model.id, model.aliases) == ("dir/m.Q8_0", ("dir/m",))
    assert registry.scan(without=[str(path)]) == ()


def test_a_model_is_found_by_id_alias_and_path(tmp_path: Path) -> None:
    path = write_header(tmp_path / "Qwen3-4B.Q4_K_M.gguf")
    models = Registry((str(tmp_path),)).scan()
    for name in ("Qwen3-4B.Q4_K_M", "Qwen3-4B", "qwen3-4b", str(path)):
        assert find(models, name) is models[0]
    assert find(models, "qwen") is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Qwen3-4B-Q4_K_M", "Qwen3-4B"),
        ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct"),
        ("a-UD-Q2_K_XL", "a"),
        ("a.IQ4_NL", "a"),
        ("a_f16", "a"),
        ("a-BF16", "a"),
        ("gpt-oss-20b-mxfp4", "gpt-oss-20b"),
        ("phi-4", "phi-4"),
        ("Q4_0", "Q4_0"),
    ],
)
def test_names_without_their_quantisation(name: str, short: str) -> None:
    assert without_quantization(name) == short


names = st.lists(
    st.text("abB Q4_0.-é模/", min_size=1, max_size=12).map(lambda text: f"/m/{text}.gguf"),
    max_size=12,
)


@given(names)
def test_no_name_means_two_models(paths: list[str]) -> None:
    models = named((Candidate(path, "gguf"), ModelFacts(path=path)) for path in paths)
    assert [model.path for model in models] == paths
    every_name = [name for model in models for name in (model.id, *model.aliases)]
    assert len(every_name) == len(set(every_name))
    assert RESERVED not in every_name
    assert all(is_model_name(model.id) for model in models)


def test_headers_are_read_again_only_when_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "models.json"
    path = write_header(tmp_path / "m" / "a.gguf")
    write_header(tmp_path / "m" / "b.gguf")
    (tmp_path / "m" / "broken.gguf").touch()
    before = scan(tmp_path / "m", cache=cache)
    read: list[str] = []

    def note(path: str, form: object) -> ModelFacts:
        read.append(os.path.basename(path))
        return read_facts(path, form)  # type: ignore[arg-type]

    monkeypatch.setattr(registry_module, "read_facts", note)
    assert scan(tmp_path / "m", cache=cache) == before
    assert read == ["broken.gguf"]
    write_header(path, "bert")
    assert scan(tmp_path / "m", cache=cache)["a"].kind == "embedding"
    assert read == ["broken.gguf", "a.gguf", "broken.gguf"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 99, "models": {}}', "\xff"])
def test_a_memory_that_is_damaged_costs_time_only(tmp_path: Path, content: str) -> None:
    write_header(tmp_path / "m" / "a.gguf")
    cache = tmp_path / "models.json"
    cache.write_text(content, encoding="latin-1")
    assert set(scan(tmp_path / "m", cache=cache)) == {"a"}
    assert json.loads(cache.read_text())["version"] == 1
    cache.unlink()
    cache.mkdir()  # cannot be written either
    assert set(scan(tmp_path / "m", cache=cache)) == {"a"}


@pytest.mark.skipif(sys.platform != "linux", reason="file names are Unicode elsewhere")
def test_a_file_name_that_is_no_text_does_not_keep_the_others_from_memory(tmp_path: Path) -> None:
    write_header(tmp_path / "m" / "a.gguf")
    write_header(tmp_path / "m" / os.fsdecode(b"\xff.gguf"))
    cache = tmp_path / "cache" / "models.json"
    assert len(scan(tmp_path / "m", cache=cache)) == 2
    assert [Path(path).name for path in json.loads(cache.read_text())["models"]] == ["a.gguf"]
    assert list(cache.parent.iterdir()) == [cache]


def test_a_directory_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    write_header(tmp_path / "a.gguf")
    shut = tmp_path / "shut"
    shut.mkdir()
    shut.chmod(0)
    try:
        assert "a" in scan(tmp_path)
    finally:
        shut.chmod(0o700)
        shutil.rmtree(shut)
