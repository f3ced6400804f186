"""The program under test: the source, or what ``--ferrum-command`` names, as a user has it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT
from tests.contract.sidecar import SOURCE

ODD_NAME = "Příliš žluťoučký kůň 模型"  # blanks, and letters of three alphabets


class Program(NamedTuple):
    """``command`` starts it; ``env`` is all that it gets of the environment."""

    command: tuple[str, ...]
    env: dict[str, str]
    is_bundle: bool


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Without a PATH, and a bundle without anything of Python's, somewhere else than built."""
    env = {"PATH": "", "HOME": str(tmp_path_factory.mktemp("home"))}
    named = request.config.getoption("--ferrum-command")
    if named is None:
        return Program(SOURCE, {**env, "PYTHONPATH": str(ROOT)}, is_bundle=False)
    built = (request.config.invocation_params.dir / named).resolve()
    if not built.is_file():
        pytest.fail(f"{built} is not there: run `make bundle`")
    moved = tmp_path_factory.mktemp("installed") / ODD_NAME
    shutil.copytree(built.parent, moved, symlinks=True, copy_function=link_or_copy)
    return Program((str(moved / built.name),), env, is_bundle=True)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program is started."""
    directory = tmp_path_factory.mktemp("started") / ODD_NAME
    directory.mkdir()
    return directory
