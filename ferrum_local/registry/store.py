"""Puts models into a directory, takes them out, and checks those that are there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ferrum_local.errors import FerrumError, ModelLoadError
from ferrum_local.llm.gguf_header import parts_of, read_header
from ferrum_local.registry.facts import Form, ModelFacts, read_facts
from ferrum_local.registry.files import find_candidates
from ferrum_local.registry.registry import RegisteredModel
from ferrum_local.registry.starter import Verified
from ferrum_local.whole_files import sha256_of

VOICES = "voices"  # the directory that voices go to


class StoreError(FerrumError):
    """Something stands in the way; the message is for a person."""


def form_of(path: str) -> Form:
    """:raises ModelLoadError: it is nothing that could be a model."""
    if os.path.isdir(path):
        found = [c for c in find_candidates([path]) if c.path == os.path.abspath(path)]
        if found:
            return found[0].form
        raise ModelLoadError(f"{path}: is a directory, and no model; --models-dir serves its files")
    return "voice" if path.lower().endswith(".onnx") else "gguf"


def files_of(path: str, form: Form) -> list[str]:
    """All files of a model, given its first; a directory is one."""
    if form == "voice":
        return [path, f"{path}.json"]
    return parts_of(read_header(path)) if form == "gguf" else [path]


def add(source: str, directory: Path, *, link: bool) -> ModelFacts:
    """Put a model that lies elsewhere into ``directory``, as a copy or a link.

    :raises ModelLoadError: it cannot be used. StoreError: there is one of that name.
    """
    source = os.path.abspath(source)
    form = form_of(source)
    facts = read_facts(source, form)
    if facts.fault is not None:
        raise ModelLoadError(f"{source}: {facts.fault}")
    place = directory / VOICES if form == "voice" else directory
    place.mkdir(parents=True, exist_ok=True)
    files = files_of(source, form)
    targets = [place / os.path.basename(file) for file in files]
    for target in targets:
        if os.path.lexists(target):
            raise StoreError(f"{target}: is there already; `ferrum-local models rm` removes it")
    # The first file last: without it, the others are no model yet.
    for file, target in reversed(list(zip(files, targets, strict=True))):
        _link(file, target) if link else _copy(file, target)
    return facts


def _link(source: str, target: Path) -> None:
    try:
        os.symlink(source, target, target_is_directory=os.path.isdir(source))
    except OSError as error:  # Windows needs a right for it
        raise StoreError(f"{target}: cannot be linked ({error.strerror}); copy it") from error


def _copy(source: str, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    try:
        if os.path.isdir(source):
            shutil.copytree(source, part)
        else:
            shutil.copyfile(source, part)
        os.replace(part, target)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written ({error.strerror})") from error
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)


def paths_of(model: RegisteredModel) -> list[Path]:
    """What belongs to a model, damaged or not, and is there."""
    path = Path(model.path)
    if model.kind == "speech":
        return [p for p in (path, Path(f"{path}.json")) if os.path.lexists(p)]
    try:
        parts = files_of(model.path, form_of(model.path))
    except ModelLoadError:
        parts = [model.path]
    return [p for p in map(Path, parts) if os.path.lexists(p)]


def remove(model: RegisteredModel) -> None:
    """Delete a model's files; of a link, only the link.

    :raises StoreError: it cannot be deleted.
    """
    for path in paths_of(model):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            raise StoreError(f"{path}: cannot be deleted ({error.strerror})") from error


def note_hash(path: Path, directory: Path, sha256: str) -> None:
    """Remember what a file's content should be, for ``verify``."""
    Verified(directory).note(path.relative_to(directory).as_posix(), sha256, path)


def verify(model: RegisteredModel, directories: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """What is wrong with each of a model's files: it has no ``fault`` of its own.

    :returns: each file, and ``ok`` (its content has the hash that it had when it was fetched),
        ``readable`` (nobody noted a hash) or what is wrong.
    """
    for path in paths_of(model):
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            wanted = _known_hash(file, directories)
            if wanted is None:
                yield file, "readable"
            else:
                yield file, "ok" if sha256_of(file) == wanted else "has another content than it had"


def _known_hash(path: Path, directories: tuple[str, ...]) -> str | None:
    for directory in directories:
        try:
            name = path.relative_to(directory).as_posix()
        except ValueError:
            continue
        found = Verified(Path(directory)).hash_of(name)
        if found is not None:
            return found
    return None
