"""Walk through directories of models: which files and directories could be one."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from ferrum_local.registry.facts import Form

logger = logging.getLogger(__name__)

MAX_DEPTH = 8  # of directories in directories
_LATER_PART = re.compile(r"(.*-)(\d{5})(-of-\d{5}\.gguf)", re.IGNORECASE | re.DOTALL)

FileId: TypeAlias = tuple[int, int]  # device and inode


class Candidate(NamedTuple):
    """What may be a model. ``also``: other names of the same file, by links."""

    path: str
    form: Form
    also: tuple[str, ...] = ()


def find_candidates(directories: Iterable[str]) -> list[Candidate]:
    """Everything in the directories that looks like a model, each file or directory once.

    Links are followed; one that leads round in a circle is not. The order is that of the
    directories, then by path. What cannot be listed is told in the log.
    """
    found: dict[FileId, Candidate] = {}
    visited: set[FileId] = set()
    for directory in directories:
        for path, form in _walk(os.path.abspath(directory), visited, MAX_DEPTH):
            file_id = identity(path)
            if file_id is None:  # a dangling link: listed, with that as its fault
                found[(-1, len(found))] = Candidate(path, form)
                continue
            known = found.get(file_id)
            if known is None:
                found[file_id] = Candidate(path, form)
            elif os.path.islink(known.path) and not os.path.islink(path):
                found[file_id] = Candidate(path, form, (known.path, *known.also))
            else:
                found[file_id] = known._replace(also=(*known.also, path))
    return list(found.values())


def identity(path: str) -> FileId | None:
    """Tells the file apart from all others, whatever it is called; None: there is none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino


def _walk(directory: str, visited: set[FileId], depth: int) -> Iterator[tuple[str, Form]]:
    file_id = identity(directory)
    if file_id is None or file_id in visited:
        return
    visited.add(file_id)
    try:
        names = sorted(n for n in os.listdir(directory) if not n.startswith("."))
    except NotADirectoryError:
        return
    except OSError as error:
        logger.warning("%s: cannot be listed (%s)", directory, error.strerror)
        return
    form = _form_of_directory(directory, names)
    if form is not None:
        yield directory, form
        return
    subdirectories = []
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isdir(path):
            subdirectories.append(path)
        elif name.lower().endswith(".gguf"):
            if not _is_later_part(name, names):
                yield path, "gguf"
        elif name.endswith(".onnx") and f"{name}.json" in names:
            yield path, "voice"
    if depth:
        for path in subdirectories:
            yield from _walk(path, visited, depth - 1)


def _form_of_directory(directory: str, names: list[str]) -> Form | None:
    """Whether the directory as a whole is one model."""
    if "model.bin" in names and "config.json" in names:
        return "whisper"
    if any(_is_vision_graph(name) for name in names):
        return "clip"
    if "onnx" in names:
        try:
            if any(_is_vision_graph(name) for name in os.listdir(os.path.join(directory, "onnx"))):
                return "clip"
        except OSError:  # a file of that name, or unreadable: not a model of ours
            return None
    return None


def _is_vision_graph(name: str) -> bool:
    return name.startswith("vision_model") and name.endswith(".onnx")


def _is_later_part(name: str, names: list[str]) -> bool:
    """Whether this is part two or later of a split model whose first part lies beside it."""
    found = _LATER_PART.fullmatch(name)
    return found is not None and f"{found[1]}00001{found[3]}" in names and found[2] != "00001"
