"""What a load imports is imported before it, so that it can run beside other imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import SMOLLM2

MINILM = SMOLLM2.parent / "all-minilm-l6-v2.q8_0.gguf"
PROGRAM = """
import sys, threading

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name)

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.types import LlmOptions, ModelSpec

models = [ModelSpec(id="smol", path=sys.argv[1]),
          ModelSpec(id="minilm", path=sys.argv[2], kind="embedding")]
engine = LocalEngine(models, LlmOptions(ctx_size=512, slots=1, **eval(sys.argv[3])))
if sys.argv[4] == "early":
    assert engine.import_for_load()
sys.meta_path.insert(0, Watch())
loader = threading.Thread(target=engine.load)
loader.start()
loader.join()
assert engine.status().state == "ready"
engine.close()
"""


def _imported_by_a_load(options: str = "{}", when: str = "early") -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(SMOLLM2), str(MINILM), options, when],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.split() if not name.startswith("encodings.")}


@pytest.mark.parametrize(
    "options",
    [{}, {"embeddings_from_chat": True}, {"draft_model": str(SMOLLM2)}],
    ids=["plain", "embeddings", "draft"],
)
def test_a_load_imports_nothing_that_was_not_there(options: dict[str, object]) -> None:
    assert _imported_by_a_load(repr(options)) == set()


def test_without_that_a_load_imports_its_runtime() -> None:
    assert "ferrum_local.llm.runtime" in _imported_by_a_load(when="late")
