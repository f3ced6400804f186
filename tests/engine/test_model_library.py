"""Models by name in a whole application: loaded when they are first asked for, and let go."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.engine.runtimes import Runtimes
from ferrum_local.errors import ModelLoadError
from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.types import (
    InferenceRequest,
    LibraryOptions,
    LlmOptions,
    LoraAdapter,
    ModelSpec,
    SamplingParams,
)
from tests.conftest import ROOT
from tests.engine.tiny_bert import write_tiny_bert
from tests.engine.tiny_models import write_llama, write_lora
from tests.fakes import Address, serving, wait_until

OPTIONS = LlmOptions(ctx_size=128, slots=2, threads=1, prompt_cache_mb=0)
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me."}]
WAIT_S = 30.0


class Library:
    """An application over a directory of models, and what a client sees of it."""

    def __init__(self, directory: Path, engine: LocalEngine, address: Address) -> None:
        self.directory = directory
        self.engine = engine
        self._url = address.url

    def send(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """POST, or GET without a body. :returns: the status and the decoded reply."""
        with self.open(path, body) as response:
            return response.status, json.loads(response.read())

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers)
        try:
            return urllib.request.urlopen(request, timeout=WAIT_S)
        except urllib.error.HTTPError as error:
            return error

    def chat(self, model: str, **more: Any) -> str:
        body = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0, **more}
        status, reply = self.send(CHAT, body)
        assert status == 200, reply
        return str(reply["choices"][0]["message"]["content"])

    def state(self, model: str) -> str:
        return str(self.model(model)["state"])

    def model(self, model: str) -> dict[str, Any]:
        status, reply = self.send(f"/v1/models/{model}")
        assert status == 200, reply
        return dict(reply)

    def wait_unloaded(self, model: str) -> None:
        wait_until(lambda: self.state(model) == "unloaded", WAIT_S)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    directory = tmp_path_factory.mktemp("mödels and more")
    write_llama(directory / "a.Q8_0.gguf")
    write_llama(directory / "b.gguf", seed=2)
    write_tiny_bert(directory / "embedder.gguf", pooling="mean")
    (directory / "broken.gguf").write_text("<html>")
    engine = LocalEngine(
        [], OPTIONS, library=LibraryOptions(directories=(str(directory),), keep_alive_s=-1)
    )
    engine.load()
    with serving(create_app(engine, HttpConfig(keep_alive_s=0.05))) as address:
        yield Library(directory, engine, address)
    engine.check()
    engine.close()


@pytest.fixture
def slow(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Loads wait for this event."""
    gate = threading.Event()
    load = Runtimes.load

    def wait_and_load(
        self: Runtimes, spec: ModelSpec, on_progress: Callable[[float], None]
    ) -> None:
        on_progress(0.42)
        assert gate.wait(WAIT_S)
        load(self, spec, on_progress)

    for model in ("a.Q8_0", "b"):
        library.engine.unload_model(model)
        library.wait_unloaded(model)  # the test before may still hold it
    monkeypatch.setattr(Runtimes, "load", wait_and_load)
    yield gate
    gate.set()


def test_a_server_without_models_of_its_own_is_ready_and_knows_what_there_is(
    library: Library,
) -> None:
    status, health = library.send("/health")
    assert (status, health["status"]) == (200, "healthy")
    _, models = library.send("/v1/models")
    assert [m["id"] for m in models["data"]] == ["a.Q8_0", "b", "embedder"]
    a = models["data"][0]
    assert (a["aliases"], a["context_length"], a["quantization"]) == (["a"], 4096, "F32")
    assert a["size_bytes"] == (library.directory / "a.Q8_0.gguf").stat().st_size


def test_two_chat_models_answer_side_by_side(library: Library) -> None:
    first = library.chat("a")
    second = library.chat("b")
    assert first != second
    assert [library.state(m) for m in ("a", "b")] == ["ready", "ready"]
    assert library.model("a")["context_length"] == 128  # of a request, now that it is loaded
    answers: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda m=m: answers.update({m: library.chat(m)})) for m in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {"a": first, "b": second}


def test_the_first_model_is_the_default_of_its_kind(library: Library) -> None:
    _, reply = library.send(CHAT, {"messages": MESSAGES, "max_tokens": 1})
    assert reply["model"] == "a.Q8_0"
    _, reply = library.send("/v1/embeddings", {"input": "hello"})
    assert reply["model"] == "embedder"
    assert library.state("embedder") == "ready"


def test_first_requests_at_once_load_once(
    library: Library, slow: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ferrum_local.llm.runtime")
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(library.chat("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: library.engine._models._manager._entries["a.Q8_0"].n_leases == 4, WAIT_S)
    assert (library.state("a"), library.model("a")["progress"]) == ("loading", 42)
    slow.set()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1 and len(answers) == 4
    assert sum("loaded in" in r.message for r in caplog.records) == 1


def test_a_stream_waits_with_keep_alives(library: Library, slow: threading.Event) -> None:
    body = {
        "model": "a", "messages": MESSAGES, "max_tokens": 2,
        "stream": True,
    }  # fmt: skip
    with library.open(CHAT, body) as response:
        assert response.status == 200
        assert [response.readline() for _ in range(4)] == [b": keep-alive\n", b"\n"] * 2
        slow.set()
        rest = response.read().decode()
    events = [line for line in rest.splitlines() if line.startswith("data: ")]
    assert json.loads(events[0][6:])["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1] == "data: [DONE]"


def test_a_deadline_and_a_client_that_leaves_end_the_wait(
    library: Library, slow: threading.Event
) -> None:
    entry = library.engine._models._manager._entries["a.Q8_0"]
    body = json.dumps({"model": "a", "prompt": "x", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json", "X-Ferrum-Timeout": "0.2"}
    url = f"{library._url}/v1/completions"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=WAIT_S)
    assert caught.value.code == 504
    stream = {"model": "a", "prompt": "x", "max_tokens": 1, "stream": True}
    with library.open("/v1/completions", stream) as response:
        response.readline()
        assert entry.n_leases == 1
    wait_until(lambda: entry.n_leases == 0, WAIT_S)
    slow.set()
    assert library.chat("a")


def test_keep_alive_is_taken_as_ollama_takes_it(library: Library) -> None:
    library.chat("a", keep_alive="10m")
    assert 590 < library.model("a")["expires_in_s"] <= 600
    library.chat("a", keep_alive=-1)
    assert library.model("a")["expires_in_s"] is None
    library.chat("a", keep_alive=0)
    library.wait_unloaded("a")
    status, reply = library.send(
        "/v1/embeddings", {"input": "x", "model": "embedder", "keep_alive": "0s"}
    )
    assert status == 200, reply
    library.wait_unloaded("embedder")
    for bad in ("soon", "5 parsecs", [], True):
        body = {"model": "a", "messages": MESSAGES, "keep_alive": bad}
        status, reply = library.send(CHAT, body)
        assert (status, reply["error"]["param"]) == (400, "keep_alive"), bad


def test_models_are_loaded_and_unloaded_by_hand(library: Library) -> None:
    status, reply = library.send("/v1/models/load", {"model": "b", "keep_alive": "1h"})
    assert (status, reply["id"], reply["state"]) == (200, "b", "ready")
    assert 3500 < library.model("b")["expires_in_s"] <= 3600
    status, reply = library.send("/v1/models/unload", {"model": "b"})
    assert (status, reply["state"]) == (200, "unloaded")
    assert library.send("/v1/models/unload", {"model": "b"})[0] == 200
    for path in ("/v1/models/load", "/v1/models/unload"):
        status, reply = library.send(path, {"model": "none"})
        assert (status, reply["error"]["code"]) == (404, "model_not_found")
        for body in ({}, {"model": ""}, {"model": None}):
            status, reply = library.send(path, body)
            assert (status, reply["error"]["param"]) == (400, "model")


def test_nothing_is_unloaded_under_a_request(library: Library) -> None:
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    request = InferenceRequest(id="r", model_id="a", prompt="Go on", sampling_params=params)
    with library.engine.infer_stream(request) as stream:
        assert next(stream) is not None
        status, reply = library.send("/v1/models/unload", {"model": "a"})
        assert (status, reply["state"]) == (202, "unloading")
        assert sum(len(chunk.token_ids) for chunk in stream) >= 60
    library.wait_unloaded("a")


def test_a_broken_file_is_a_clear_400_and_harms_nobody(library: Library) -> None:
    status, reply = library.send(CHAT, {"model": "broken", "messages": MESSAGES})
    error = reply["error"]
    assert (status, error["code"], error["param"]) == (400, "model_load_failed", "model")
    assert "a web page" in error["message"]
    assert library.chat("a")


def test_what_is_no_model_to_ask_says_what_it_is_for(library: Library) -> None:
    write_lora(library.directory / "an-adapter.gguf")
    wait_until(library.engine._models._table.rescan, WAIT_S)
    status, reply = library.send("/v1/models/load", {"model": "an-adapter"})
    assert (status, reply["error"]["code"]) == (400, "model_load_failed")
    assert "--lora" in reply["error"]["message"]
    assert library.send("/v1/models/an-adapter")[0] == 404


def test_a_split_model_answers_as_the_whole_one(library: Library) -> None:
    write_llama(library.directory / "parts.gguf", split_max_tensors=8)
    assert len(list(library.directory.glob("parts-0000*"))) > 2
    wait_until(lambda: library.send("/v1/models/parts")[0] == 200)
    assert library.chat("parts") == library.chat("a")


def test_a_load_that_fails_is_told_and_tried_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.engine.unload_model("b")

    def fail(self: Runtimes, spec: ModelSpec, on_progress: object) -> None:
        raise ModelLoadError(f"{spec.path}: no memory")

    with monkeypatch.context() as patched:
        patched.setattr(Runtimes, "load", fail)
        status, reply = library.send("/v1/models/load", {"model": "b"})
        assert (status, reply["error"]["code"]) == (400, "model_load_failed")
        assert library.model("b")["state"] == "failed"
        assert "no memory" in library.model("b")["error"]
    assert library.send("/health")[0] == 200
    assert library.chat("b")


def test_a_model_that_comes_later_is_found_and_one_that_goes_is_forgotten(library: Library) -> None:
    path = library.directory / "later.gguf"
    write_llama(path, seed=3)
    wait_until(lambda: library.send("/v1/models/later")[0] == 200)
    assert library.chat("later")
    library.engine.unload_model("later")
    path.unlink()
    wait_until(lambda: library.send("/v1/models/later")[0] == 404)
    assert library.send(CHAT, {"model": "later", "messages": MESSAGES})[0] == 404


def test_a_model_that_was_deleted_still_answers_while_it_is_loaded(library: Library) -> None:
    path = library.directory / "gone.gguf"
    write_llama(path, seed=4)
    wait_until(lambda: library.send("/v1/models/gone")[0] == 200)
    answer = library.chat("gone")
    path.unlink()
    wait_until(library.engine._models._table.rescan, WAIT_S)
    assert library.chat("gone") == answer
    library.engine.unload_model("gone")
    wait_until(lambda: library.send("/v1/models/gone")[0] == 404)


def test_swapping_leaves_nothing_behind() -> None:
    """The script that swaps many, with few."""
    script = [sys.executable, "scripts/soak_models.py", "--models", "3", "--swaps", "7"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 models registered" in done.stdout and "from the second round" in done.stdout


def test_a_model_given_by_flag_says_what_its_file_says_and_answers_to_its_short_name(
    tmp_path: Path,
) -> None:
    write_llama(tmp_path / "Tiny-Model.Q8_0.gguf")
    write_tiny_bert(tmp_path / "embedder.gguf", pooling="mean")
    models = [
        ModelSpec(id="Tiny-Model.Q8_0", path=str(tmp_path / "Tiny-Model.Q8_0.gguf")),
        ModelSpec(id="embedder", path=str(tmp_path / "embedder.gguf"), kind="embedding"),
    ]
    engine = LocalEngine(models, OPTIONS)
    engine.load()
    with serving(create_app(engine)) as address:
        server = Library(tmp_path, engine, address)
        info = server.model("Tiny-Model.Q8_0")
        assert info["aliases"] == ["Tiny-Model", "tiny-model"]
        assert info["quantization"] == "F32"
        assert server.chat("tiny-model") == server.chat("Tiny-Model.Q8_0")
        for name, problem in (
            ("embedder", "The model 'embedder' is for embedding, not for chat. Known: Tiny"),
            ("nobody", "No model 'nobody' here. Known: Tiny-Model.Q8_0 (also Tiny-Model,"),
        ):
            status, reply = server.send(CHAT, {"model": name, "messages": MESSAGES})
            assert (status, reply["error"]["code"]) == (404, "model_not_found")
            assert reply["error"]["message"].startswith(problem)
    engine.close()


# LoRA


def answer_with(directory: Path, *loras: LoraAdapter) -> str:
    spec = ModelSpec(id="m", path=str(directory / "m.gguf"), loras=loras)
    engine = LocalEngine([spec], OPTIONS)
    engine.load()
    try:
        params = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
        request = InferenceRequest(id="r", model_id="m", prompt="Hello", sampling_params=params)
        return repr(engine.infer(request).choices[0].token_ids)
    finally:
        engine.close()


def test_an_adapter_changes_what_a_model_writes_by_its_scale(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf")
    path = tmp_path / "lora.gguf"
    write_lora(path)
    plain = answer_with(tmp_path)
    assert answer_with(tmp_path, LoraAdapter(path=str(path))) != plain
    assert answer_with(tmp_path, LoraAdapter(path=str(path), scale=0.0)) == plain
    both = [LoraAdapter(path=str(path), scale=s) for s in (1.5, -1.5)]
    assert answer_with(tmp_path, both[0]) != plain
    assert len(answer_with(tmp_path, *both)) > 0


def test_a_request_cannot_have_adapters_of_its_own(tmp_path: Path) -> None:
    """What it asks for is never ignored: as the server was started, or a 400."""
    write_llama(tmp_path / "m.gguf")
    write_lora(tmp_path / "lora.gguf")
    lora = LoraAdapter(path=str(tmp_path / "lora.gguf"), scale=0.5)
    engine = LocalEngine([ModelSpec(id="m", path=str(tmp_path / "m.gguf"), loras=(lora,))], OPTIONS)
    engine.load()
    with serving(create_app(engine)) as address:
        server = Library(tmp_path, engine, address)
        assert server.chat("m", lora=[{"id": 0, "scale": 0.5}]) == server.chat("m")
        for wrong in ([], [{"id": 0, "scale": 1.0}], [{"id": 1, "scale": 0.5}], [{"id": 0}]):
            body = {"model": "m", "messages": MESSAGES, "lora": wrong}
            status, reply = server.send(CHAT, body)
            assert (status, reply["error"]["param"].startswith("lora")) == (400, True), wrong
    engine.close()


def test_what_is_no_adapter_for_the_model_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf")
    write_lora(tmp_path / "other.gguf", n_embd=32)
    with pytest.raises(ModelLoadError, match="other.gguf: is no LoRA adapter for"):
        answer_with(tmp_path, LoraAdapter(path=str(tmp_path / "other.gguf")))
    with pytest.raises(ModelLoadError, match="m.gguf: is not a LoRA adapter"):
        answer_with(tmp_path, LoraAdapter(path=str(tmp_path / "m.gguf")))
