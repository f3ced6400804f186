"""``ferrum-local doctor`` on this machine, with real models and with native code that crashes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import CTRL_C, Terminal, run, standing_in
from tests.conftest import MINILM, ROOT, SMOLLM2

WHISPER = ROOT / "models" / "whisper-tiny.en"
VOICE = ROOT / "models" / "voices" / "en_US-joe-medium.onnx"
needs_models = pytest.mark.skipif(
    not all(path.exists() for path in (SMOLLM2, MINILM, WHISPER, VOICE)),
    reason="starter models not fetched",
)
posix_only = pytest.mark.skipif(os.name != "posix", reason="ends itself by a signal")
# A free port: another server may have the usual one.
ANY_PORT = {"FERRUM_PORT": "0"}


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    """One model of each kind, as the starter models lie there."""
    directory = tmp_path / "models"
    (directory / "voices").mkdir(parents=True)
    for path in (SMOLLM2, MINILM, WHISPER):
        (directory / path.name).symlink_to(path)
    for suffix in ("", ".json"):
        (directory / "voices" / (VOICE.name + suffix)).symlink_to(f"{VOICE}{suffix}")
    return directory


def findings(text: str) -> dict[str, dict[str, Any]]:
    return {finding["topic"]: finding for finding in json.loads(text)["findings"]}


@needs_models
def test_ins_05_every_starter_model_loads_and_answers(models_dir: Path, tmp_path: Path) -> None:
    env = {**ANY_PORT, "FERRUM_MODELS_DIR": str(models_dir)}
    with SMOLLM2.open("rb") as whole:
        (models_dir / "cut.gguf").write_bytes(whole.read(8_000_000))

    done = run("doctor", "--json", cwd=tmp_path, env=env)

    assert done.stderr == ""
    found = findings(done.stdout)
    answering = [topic for topic, f in found.items() if "answers in" in f["what"]]
    assert answering == [
        f"chat {SMOLLM2.stem}", f"embedding {MINILM.stem}", f"transcription {WHISPER.name}",
        f"speech {VOICE.stem}",
    ]  # fmt: skip
    for topic in ("python", "settings", "llama.cpp", "cpu", "memory", "disk", "port", "espeak-ng"):
        assert found[topic]["status"] in ("ok", "warning"), found[topic]
    assert found["chat cut"]["status"] == "problem" and "cut short" in found["chat cut"]["what"]
    assert json.loads(done.stdout)["ok"] is False and done.returncode == 1


@posix_only
@needs_models
def test_ins_02_native_code_that_aborts_is_a_finding_and_the_rest_goes_on(tmp_path: Path) -> None:
    body = "print('ggml.c:1: GGML_ASSERT(fits) failed', file=sys.stderr, flush=True); os.abort()"
    env = {**ANY_PORT, **standing_in(tmp_path, "llama_cpp", body)}

    done = run("doctor", "--json", "--model", str(SMOLLM2), "--model", str(VOICE),
               cwd=tmp_path, env=env)  # fmt: skip

    assert done.returncode == 1
    found = findings(done.stdout)
    said = "aborted: ggml.c:1: GGML_ASSERT(fits) failed"
    assert found["llama.cpp"]["what"] == said
    assert found[f"chat {SMOLLM2.stem}"]["what"] == f"{SMOLLM2}: {said}"
    assert found[f"speech {VOICE.stem}"]["status"] == "ok"


@posix_only
def test_ins_02_an_illegal_instruction_names_the_basic_build(tmp_path: Path) -> None:
    env = {**ANY_PORT, **standing_in(tmp_path, "llama_cpp", "os.kill(os.getpid(), signal.SIGILL)")}
    done = run("doctor", "--model", "none.gguf", cwd=tmp_path, env=env)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "PROBLEM  llama.cpp: was built for another CPU" in done.stdout
    assert "-DGGML_AVX2=OFF" in done.stdout
    assert "none.gguf: no such file" in done.stdout


@posix_only
def test_a_probe_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    env = {**ANY_PORT, **standing_in(tmp_path, "onnxruntime", "signal.pause()")}
    if not VOICE.exists():
        pytest.skip("starter models not fetched")
    done = run("doctor", "--json", "--timeout", "1.5", "--model", str(VOICE),
               cwd=tmp_path, env=env)  # fmt: skip
    assert "no answer within 1.5 s" in findings(done.stdout)[f"speech {VOICE.stem}"]["what"]


@posix_only
def test_cli_05_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    env = {**ANY_PORT, **standing_in(tmp_path, "llama_cpp", "signal.pause()")}
    with Terminal("doctor", cwd=tmp_path, env=env) as terminal:
        terminal.read_until("settings:")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.seen
    assert terminal.process.returncode == 128 + signal.SIGINT
