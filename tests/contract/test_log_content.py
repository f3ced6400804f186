"""What the log holds of requests: nothing, at any level and whatever goes wrong, until asked to."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrum_local.http.config import HttpConfig
from ferrum_local.server.config import Backend, ServeConfig
from ferrum_local.types import ModelSpec
from tests.conftest import SMOLLM2, VOICE
from tests.contract.live import CHAT
from tests.contract.sidecar import Sidecar, post, sidecar
from tests.prompted_engine import FACTORY
from tests.server_process import CLIENT_TIMEOUT_S, ServerProcess, fetch

POSIX_ONLY = pytest.mark.skipif(os.name != "posix", reason="gunicorn needs POSIX")
SECRET = "xylophone"


def chat(order: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": order}], **fields}


def everything_that_goes_wrong(port: int) -> None:
    """Requests with the secret in each place, answered and refused, whole and broken."""
    for path, body in (
        (CHAT, chat(f"hello {SECRET}")),
        (CHAT, chat(f"hello {SECRET}", stream=True)),
        (CHAT, chat(f"bug {SECRET}")),
        (CHAT, chat(f"bug {SECRET}", stream=True)),
        (CHAT, chat("hello", temperature=SECRET)),
        (CHAT, chat("hello", model=SECRET)),
        (CHAT, {"messages": [{"role": SECRET, "content": "x"}]}),
        ("/v1/embeddings", {"input": SECRET}),
        (f"{CHAT}?prompt={SECRET}", chat("hello")),
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=CLIENT_TIMEOUT_S) as client:
            data = json.dumps(body).encode()
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                + data
            )
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 ")
    for raw in (
        f"{SECRET} {SECRET}\r\n\r\n",  # the rest of a body that was longer than it said
        f"GET /health HTTP/1.1\r\nHost: localhost\r\n{SECRET}\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: 20\r\n\r\n{{{SECRET}: 1}}......",
        f"POST {CHAT} HTTP/1.1\r\nHost: {SECRET}\r\nContent-Length: {SECRET}\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=CLIENT_TIMEOUT_S) as client:
            client.sendall(raw.encode())
            client.makefile("rb").read()


@pytest.fixture(params=[pytest.param("gunicorn", marks=POSIX_ONLY), "werkzeug"])
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


def served(backend: Backend, log: Path, *, log_content: bool) -> Iterator[ServerProcess]:
    config = ServeConfig(
        models=(ModelSpec(id="tiny", path="ok"),), port=0, announce="json", log_level="debug",
        http=HttpConfig(log_content=log_content),
    )  # fmt: skip
    server = ServerProcess(config, log, engine_factory=FACTORY, backend=backend)
    try:
        yield server
    finally:
        server.close()


def test_the_log_has_no_word_of_any_request_even_at_level_debug(
    backend: Backend, tmp_path: Path
) -> None:
    for server in served(backend, tmp_path / "log", log_content=False):
        port = server.read_ready()["port"]
        everything_that_goes_wrong(port)
        assert fetch(port, "/health")[0] == 200
        server.terminate()
        assert server.wait() == 0
        assert "RuntimeError (--log-content shows its message)" in server.log
        assert "POST /v1/chat/completions 200" in server.log
        assert SECRET not in server.log.lower()


def test_with_log_content_it_has_what_was_asked_and_what_was_answered(
    backend: Backend, tmp_path: Path
) -> None:
    for server in served(backend, tmp_path / "log", log_content=True):
        port = server.read_ready()["port"]
        everything_that_goes_wrong(port)
        server.terminate()
        assert server.wait() == 0
        assert f'"content": "hello {SECRET}"' in server.log
        assert '"content":"Hello"' in server.log
        assert "data: [DONE]" in server.log
        assert f"query: prompt={SECRET}" in server.log
        assert f"RuntimeError: bug {SECRET}" in server.log


def test_real_models_and_their_libraries_keep_quiet_too(tmp_path: Path) -> None:
    """Piper's own logger writes each text that it speaks at level debug."""
    if not (SMOLLM2.exists() and VOICE.exists()):
        pytest.skip("models are not here: run `make setup-test`")
    models = ["--model", f"smol={SMOLLM2}", "--ctx-size", "256", "--slots", "1",
              "--voice", f"joe={VOICE}"]  # fmt: skip
    with sidecar(tmp_path / "log", *models, "--log-level", "debug") as server:
        port = server.wait_event("ready")["port"]
        _use(server, port)
        assert "POST /v1/audio/speech 200" in server.log
        assert SECRET not in server.log.lower()


def _use(server: Sidecar, port: int) -> None:
    assert post(port, CHAT, chat(f"Repeat: {SECRET}", max_tokens=8))[0] == 200
    with socket.create_connection(("127.0.0.1", port), timeout=CLIENT_TIMEOUT_S) as client:
        body = json.dumps({"input": f"A {SECRET}.", "response_format": "wav"}).encode()
        client.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
    server.process.terminate()
    assert server.wait() == 0
