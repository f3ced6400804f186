"""How OpenMP's threads wait is settled before llama.cpp or CTranslate2 is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, os, sys
importlib.import_module(sys.argv[1])
print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other OpenMP libraries")
RUNTIMES = ["ferrum_local.llm.model", "ferrum_local.stt.model"]


def _waits(module: str, **set_by_user: str) -> list[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module],
        env=environment | set_by_user, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize("module", RUNTIMES)
def test_threads_spin_briefly_whichever_runtime_comes_first(module: str) -> None:
    assert _waits(module) == ["2000", "active"]


def test_what_the_user_has_set_stays() -> None:
    assert _waits(RUNTIMES[1], OMP_WAIT_POLICY="passive") == ["2000", "passive"]
