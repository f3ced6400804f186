"""``ferrum-local ps`` and ``bench`` with a server that has every kind of starter model."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from ferrum_local.cli.bench.command import measure_all
from ferrum_local.cli.bench.targets import ChatTimes
from ferrum_local.cli.tables import amount
from tests.cli.terminal import run
from tests.conftest import MINILM, ROOT, SMOLLM2, RunningServer, serve
from tests.contract.live import load, stream_events
from tests.fakes import wait_until

WHISPER = ROOT / "models" / "whisper-tiny.en"
VOICE = ROOT / "models" / "voices" / "en_US-joe-medium.onnx"
KEY = "sesame"
needs_models = pytest.mark.skipif(
    not all(path.exists() for path in (SMOLLM2, MINILM, WHISPER, VOICE)),
    reason="starter models not fetched",
)


@pytest.fixture(scope="module")
def whole_server() -> Iterator[RunningServer]:
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--embedding-model", str(MINILM), "--slots", "2",
        "--ctx-size", "1024", "--whisper-model", str(WHISPER), "--voice", str(VOICE),
    )  # fmt: skip


@needs_models
def test_ps_shows_models_memory_slots_and_what_runs(
    whole_server: RunningServer, tmp_path: Path
) -> None:
    body = {"messages": [{"role": "user", "content": "Tell a story."}], "ignore_eos": True}
    events = stream_events(whole_server, "/v1/chat/completions", body)
    next(events)
    wait_until(lambda: load(whole_server).running == 1, 60.0)

    done = run("ps", "--url", whole_server.url, "--json", cwd=tmp_path)
    events.close()

    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["status"], seen["url"]) == ("healthy", whole_server.url)
    assert seen["active_requests"] == 1 and seen["queued_requests"] == 0
    assert seen["memory_bytes"] > 100_000_000
    models = {model["kind"]: model for model in seen["models"]}
    assert set(models) == {"chat", "embedding", "transcription", "speech"}
    chat = models["chat"]
    assert (chat["id"], chat["state"], chat["running"], chat["slots"]) == ("smol", "ready", 1, 2)
    assert chat["context_length"] == 1024 and chat["size_bytes"] == SMOLLM2.stat().st_size


@needs_models
def test_ps_is_a_table_for_people(whole_server: RunningServer, tmp_path: Path) -> None:
    done = run("ps", "--url", whole_server.url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, running, columns, _, *rows = done.stdout.splitlines()
    assert whole_server.url in head and "healthy" in head and "MiB of memory" in head
    assert running.endswith(" running, 0 waiting")
    assert columns.split() == ["model", "kind", "state", "size", "context", "busy"]
    assert [row.split()[0] for row in rows][:2] == ["smol", MINILM.stem]
    assert "of 2 slots" in rows[0] and "\x1b" not in done.stdout


@needs_models
def test_ps_needs_a_key_for_the_numbers_alone(tmp_path: Path) -> None:
    server = serve(
        "--embedding-model", str(MINILM), "--models-dir", str(tmp_path), "--api-key", KEY
    )  # fmt: skip
    url = next(server).url
    without = run("ps", "--url", url, "--json", cwd=tmp_path)
    with_key = run("ps", "--url", url, "--json", cwd=tmp_path, env={"FERRUM_API_KEY": KEY})
    assert next(server, None) is None
    assert json.loads(without.stdout)["memory_bytes"] is None
    assert json.loads(without.stdout)["models"][0]["state"] == "ready"
    assert json.loads(with_key.stdout)["memory_bytes"] > 0


def test_ps_says_that_nothing_or_something_else_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    done = run("ps", cwd=tmp_path, env={"FERRUM_PORT": port})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: Nothing listens at http://127.0.0.1:{port}. Start a server with "
        "`ferrum-local serve`, or name one with --url.\n"
    )


# bench


@needs_models
def test_bench_measures_each_kind_of_a_server(whole_server: RunningServer, tmp_path: Path) -> None:
    done = run("bench", "--url", whole_server.url, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {m["what"]: m for m in json.loads(done.stdout)["measurements"]}
    assert list(found) == [
        "prefill", "decode", "time to first token", "embeddings", "speech", "transcription",
    ]  # fmt: skip
    assert all(m["value"] > 0 for m in found.values())
    assert found["prefill"]["value"] > found["decode"]["value"]
    assert found["speech"]["value"] < 5 and found["transcription"]["unit"] == "RTF"


@needs_models
def test_bench_measures_a_model_here_in_a_table(tmp_path: Path) -> None:
    done = run("bench", "--model", str(MINILM), "--model", str(WHISPER), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[2].split()[:2] == ["embeddings", MINILM.stem] and "texts/s" in lines[2]
    assert "not measured" in lines[3] and "give a recording with --audio" in lines[3]


class Scripted:
    """A model of which everything is known; notes what it is asked for."""

    model = "scripted"

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.n_tokens: list[int] = []
        self.prompts: list[str] = []

    def chat(self, prompt: str, n_tokens: int) -> ChatTimes:
        n_words = len(prompt.split())
        self.prompts.append(prompt)
        self.n_tokens.append(n_tokens)
        return ChatTimes(n_words, n_words / self.per_s, n_tokens, (n_tokens - 1) / self.per_s, 0.5)

    def embed(self, texts: Sequence[str]) -> None:
        raise AssertionError("not an embedding model")

    def speak(self, text: str) -> bytes:
        raise AssertionError("not a voice")

    def transcribe(self, recording: bytes) -> float:
        raise AssertionError("no Whisper model")


@pytest.mark.parametrize(("per_s", "n_prompt", "n_generated"), [(5, 62, 15), (1000, 402, 128)])
def test_a_slow_machine_is_asked_for_less(per_s: float, n_prompt: int, n_generated: int) -> None:
    model = Scripted(per_s)
    prefill, decode, first = measure_all({"chat": lambda: nullcontext(model)}, None)
    assert (len(model.prompts[1].split()), model.n_tokens[2]) == (n_prompt, n_generated)
    assert prefill.value == pytest.approx(per_s) and decode.value == pytest.approx(per_s)
    assert (first.value, first.unit) == (500.0, "ms")


def test_every_prompt_is_new_to_a_cache_from_its_first_word() -> None:
    model = Scripted(10)
    for _ in range(2):
        list(measure_all({"chat": lambda: nullcontext(model)}, None))
    beginnings = {prompt[:40] for prompt in model.prompts}
    assert len(beginnings) == len(model.prompts) == 8


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_amounts_are_readable(n_bytes: int, text: str) -> None:
    assert amount(n_bytes) == text
