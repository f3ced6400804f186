"""Imports go down only: the contracts of setup.cfg hold, and they would notice a breach."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    """Check the package in ``directory`` (which comes first on the path) in a fresh process."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from importlinter.cli import lint_imports_command\n"
        "lint_imports_command(['--no-cache', 'setup.cfg'])"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False
    )


def test_the_layers_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("contract", "exempt"),
    [
        ("runtimes", {"llm", "vision", "stt", "tts"}),
        ("web", {"cli", "server", "search", "config", "http"}),
    ],
)
def test_a_contract_leaves_out_nothing_but_those_it_is_not_for(
    contract: str, exempt: set[str]
) -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    sources = settings[f"importlinter:contract:{contract}"]["source_modules"].split()
    there = {
        path.stem
        for path in (ROOT / "ferrum_local").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {source.removeprefix("ferrum_local.") for source in sources} == (
        there - exempt - {"__init__", "__main__"}
    )


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("llm", "import ferrum_local.engine", "Imports go down only"),
        ("http", "import ferrum_local.config", "Imports go down only"),
        ("http", "import llama_cpp", "Only a runtime imports a native library"),
        ("llm", "import flask", "Nothing below http knows of the web framework"),
        ("stt", "import ferrum_local.llm", "Imports go down only"),
        ("audio", "import ferrum_local.tts", "Imports go down only"),
        ("http", "import ferrum_local.stt", "http reaches a runtime only through the engine"),
        ("http", "import ferrum_local.llm", "http reaches a runtime only through the engine"),
        ("search", "import ferrum_local.engine", "Search knows no model, server or setting"),
        ("engine", "import json", "The engine formats no JSON"),
        ("vectors.py", "import llama_cpp", "Only a runtime imports a native library"),
        ("processes.py", "import flask", "Nothing below http knows of the web framework"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, module: str, line: str, contract: str) -> None:
    shutil.copytree(
        ROOT / "ferrum_local",
        tmp_path / "ferrum_local",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    breach = tmp_path / "ferrum_local" / module
    if breach.is_dir():
        breach /= "breach.py"
    with breach.open("a") as file:
        file.write(f"{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout
    assert f"{contract} BROKEN" in done.stdout
