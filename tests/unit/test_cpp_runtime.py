"""Libraries that carry a C++ runtime of their own do not keep llama.cpp from loading a model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import SMOLLM2

LOAD = """
from ferrum_local.llm.model import LlamaModel
assert LlamaModel(sys.argv[1], gpu_layers=0).n_vocab > 0
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="unique symbols are ELF's")


def _run(*imports: str) -> subprocess.CompletedProcess[str]:
    program = "\n".join(["import sys", *(f"import {name}" for name in imports), LOAD])
    return subprocess.run(
        [sys.executable, "-c", program, str(SMOLLM2)], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "imports",
    [["ferrum_local.search.store"], ["ferrum_local.llm.model", "usearch.index"]],
    ids=["our-search", "usearch-after-us"],
)
def test_a_model_loads_beside_usearch(imports: list[str]) -> None:
    done = _run(*imports)
    assert done.returncode == 0, done.stderr


def test_a_library_that_came_first_is_named_as_the_cause() -> None:
    done = _run("usearch.index")
    assert "import ferrum_local.llm.model before it" in done.stderr, done.stderr
