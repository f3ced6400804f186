"""llama.cpp's own messages go through a callback: nobody's standard streams are redirected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.engine.tiny_models import write_llama

N_LINES = 300
SCRIPT = """
import logging, os, sys, threading
from ferrum_local.llm.runtime import LlmRuntime
from ferrum_local.server.logs import configure_logging
from ferrum_local.types import LlmOptions, ModelSpec

path, n_lines = sys.argv[1], int(sys.argv[2])
configure_logging("text", "debug")
before = [os.fstat(fd) for fd in (1, 2)]
stop = threading.Event()

def load():
    while not stop.is_set():
        runtime = LlmRuntime(ModelSpec(id="m", path=path), LlmOptions(ctx_size=64, slots=1))
        runtime.close()

loaders = [threading.Thread(target=load) for _ in range(2)]
for thread in loaders:
    thread.start()
for i in range(n_lines):
    logging.getLogger("ferrum_local.test").warning("line %d", i)
    os.write(1, b"out\\n")
stop.set()
for thread in loaders:
    thread.join()
assert [os.fstat(fd) for fd in (1, 2)] == before
"""


def test_life_05_no_line_is_lost_while_models_load_on_two_threads(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "tiny.gguf"), str(N_LINES)], cwd=ROOT,
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if " WARNING line " in line]
    assert [line.rsplit(" ", 1)[1] for line in told] == [str(i) for i in range(N_LINES)]
    assert done.stdout == "out\n" * N_LINES
