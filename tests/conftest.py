"""Fixtures that run the real thing: a served SmolLM2 for HTTP tests, an engine for engine tests."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.types import LlmOptions, ModelSpec
from tests.steady_voice import write_steady_voice

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = ROOT / "models" / "all-minilm-l6-v2.f16.gguf"
MINILM_Q8_0 = ROOT / "models" / "all-minilm-l6-v2.q8_0.gguf"
GEMMA3 = ROOT / "models" / "test" / "gemma-3-270m.Q4_K_M.gguf"
VOICE = ROOT / "models" / "voices" / "en_US-joe-medium.onnx"
N_CTX = 2048
N_SLOTS = 8
_START_S = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ferrum-command",
        metavar="PATH",
        help="a frozen ferrum-local for tests/smoke to run; default: the source",
    )


def pytest_report_header() -> str:
    missing = [str(p.relative_to(ROOT)) for p in (SMOLLM2, MINILM, GEMMA3) if not p.exists()]
    return (
        f"models missing (run `make setup-test`): {', '.join(missing)}"
        if missing
        else "models: all there"
    )


@dataclasses.dataclass(frozen=True)
class RunningServer:
    """A ``ferrum-local serve`` process. ``model`` is the id that clients see."""

    url: str
    model: str
    pid: int

    @property
    def host(self) -> str:
        return self.url.split("//", 1)[1].rsplit(":", 1)[0]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def client(self, **options: object) -> openai.OpenAI:
        """The official SDK, without retries so that a test sees what the server said."""
        settings: dict[str, object] = {
            "base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 120.0,
        }  # fmt: skip
        return openai.OpenAI(**{**settings, **options})  # type: ignore[arg-type]


def serve(*arguments: str) -> Iterator[RunningServer]:
    """Run the command until the fixture ends; fails with its log if it does not get ready."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ferrum_local", "serve", "--port", "0", "--announce", "json",
             *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8",
            env={k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                process.wait(_START_S)
                log.seek(0)
                pytest.fail(f"the server ended with {process.returncode}:\n{log.read()}")
            ready = json.loads(line)
            yield RunningServer(url=ready["url"], model=ready["models"][0], pid=ready["pid"])
            assert process.poll() is None, "the server died during the tests"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            finally:
                process.stdout.close()


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """SmolLM2 with 8 slots of 2,048 tokens."""
    yield from serve(
        "--model", str(SMOLLM2), "--alias", f"smol={SMOLLM2.stem}",
        "--ctx-size", str(N_CTX), "--slots", str(N_SLOTS),
    )  # fmt: skip


@pytest.fixture(scope="session")
def gemma_server() -> Iterator[RunningServer]:
    """Gemma 3 270M base: no chat template, sliding window, 262k vocabulary."""
    if not GEMMA3.exists():
        pytest.skip("Gemma is not here: run `make setup-test`")
    yield from serve("--model", str(GEMMA3), "--ctx-size", "1024", "--slots", "4")


def _engine(path: Path, options: LlmOptions) -> Iterator[LocalEngine]:
    engine = LocalEngine([ModelSpec(id=path.stem, path=str(path))], options)
    engine.load()
    yield engine
    for runtime in engine._runtimes.llms.values():
        runtime.runner.check()
    engine.close()


@pytest.fixture(scope="session")
def engine() -> Iterator[LocalEngine]:
    """SmolLM2 in this process. The integrity check runs when the session ends."""
    yield from _engine(SMOLLM2, LlmOptions(ctx_size=1024, slots=4))


@pytest.fixture(scope="session")
def steady_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``VOICE`` without chance, for all speech that is listened to for its words."""
    if not VOICE.exists():
        pytest.skip(f"{VOICE.name} is not here: run `make setup-test`")
    return write_steady_voice(tmp_path_factory.mktemp("voices"), like=VOICE)


@pytest.fixture(scope="session")
def gemma_engine() -> Iterator[LocalEngine]:
    if not GEMMA3.exists():
        pytest.skip("Gemma is not here: run `make setup-test`")
    yield from _engine(GEMMA3, LlmOptions(ctx_size=1024, slots=4))
