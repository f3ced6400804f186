"""What a load imports is imported before it, so that it can run beside other imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.types import ModelSpec
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

models = [ModelSpec(id="smol", path=sys.argv[1])] if sys.argv[1] else []
models += [ModelSpec(id="minilm", path=sys.argv[2], kind="embedding")] if sys.argv[2] else []
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


def _imported_by_a_load(
    options: dict[str, object], when: str = "early", *, chat: str = str(SMOLLM2), embeds: str = ""
) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, chat, embeds, repr(options), when],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "options",
    [{}, {"embeddings_from_chat": True}, {"draft_model": str(SMOLLM2)}],
    ids=["plain", "embeddings", "draft"],
)
def test_a_load_imports_nothing_that_was_not_there(options: dict[str, object]) -> None:
    assert _imported_by_a_load(options) == set()


def test_nor_does_that_of_a_model_that_embeds() -> None:
    assert _imported_by_a_load({}, chat="", embeds=str(MINILM)) == set()


def test_without_that_a_load_imports_its_runtime() -> None:
    assert "ferrum_local.llm.runtime" in _imported_by_a_load({}, "late")


def test_what_cannot_be_imported_is_left_to_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells which model it was for."""
    monkeypatch.setattr("ferrum_local.engine.runtimes._CHAT_MODULES", ("no_such_module",))
    engine = LocalEngine([ModelSpec(id="smol", path=str(SMOLLM2))])
    assert not engine.import_for_load()
