"""What an app relies on, where two processes serve, and where one does (Windows)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from ferrum_local.http.config import HttpConfig
from ferrum_local.server.config import Backend, ServeConfig
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.types import ModelSpec
from tests.contract.sidecar import over_socket, post
from tests.fakes import wait_until
from tests.prompted_engine import FACTORY
from tests.server_process import ChatStream, ServerProcess, StartServer, fetch, is_refused

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and sockets as on POSIX")
BACKENDS: tuple[Backend, ...] = ("gunicorn", "werkzeug")
both = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers with a scripted engine and all events on stdout."""
    started: list[ServerProcess] = []

    def start_one(
        backend: Backend, *, model: str = "ok", stdin: int = subprocess.DEVNULL, **fields: object
    ) -> ServerProcess:
        config = ServeConfig(
            models=(ModelSpec(id="tiny", path=model),), port=0, announce="events",
            http=HttpConfig(api_keys=("key",)),
        )  # fmt: skip
        server = ServerProcess(
            msgspec.structs.replace(config, **fields), tmp_path / f"log-{len(started)}",
            engine_factory=FACTORY, backend=backend, stdin=stdin,
        )  # fmt: skip
        started.append(server)
        return server

    yield start_one
    for server in started:
        if server.process.stdin is not None:
            server.process.stdin.close()
        server.close()


def read_until(server: ServerProcess, name: str) -> dict[str, object]:
    while True:
        event = server.read_ready()
        if event["event"] == name:
            return event


def rest(server: ServerProcess) -> list[dict[str, object]]:
    assert server.process.stdout is not None
    return [json.loads(line) for line in server.process.stdout]


@both
def test_life_01_shutdown_lets_the_running_answer_end(
    start: StartServer, backend: Backend, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    server = start(backend, http=HttpConfig(), token_file=str(tmp_path / "token"))
    port = server.port()
    read_until(server, "ready")
    key = (tmp_path / "token").read_text().strip()
    stream = ChatStream(port, f"wait {gate}", key=key)
    stream.read_until("before")
    assert post(port, "/shutdown", key=key) == (200, {"status": "draining"})
    wait_until(lambda: is_refused(port))
    assert server.process.poll() is None
    gate.touch()
    assert stream.read_rest()[-1] == "[DONE]"
    assert server.wait() == ExitCode.STOPPED
    draining, exited = rest(server)
    assert (draining["reason"], exited["code"]) == ("shutdown_requested", 0)
    assert not (tmp_path / "token").exists()


@both
def test_life_01_the_end_of_stdin_ends_the_server_and_what_is_written_there_does_not(
    start: StartServer, backend: Backend
) -> None:
    server = start(backend, stdin=subprocess.PIPE, exit_on_stdin_close=True, drain_timeout_s=3600.0)
    port = server.port()
    read_until(server, "ready")
    stdin = server.process.stdin
    assert stdin is not None
    stdin.write(b"anything\n")
    stdin.flush()
    stream = ChatStream(port, "forever", key="key")
    stream.read_until("tick")
    assert fetch(port, "/health")[0] == 200
    stdin.close()
    assert "error" in json.loads(stream.read_rest()[-1])
    assert server.wait() == ExitCode.STOPPED
    assert rest(server)[0] == {"event": "draining", "reason": "stdin_closed", "grace_s": 0.0}


@both
def test_life_01_a_stop_under_way_is_cut_short_when_stdin_ends(
    start: StartServer, backend: Backend
) -> None:
    server = start(backend, stdin=subprocess.PIPE, exit_on_stdin_close=True, drain_timeout_s=3600.0)
    port = server.port()
    read_until(server, "ready")
    stream = ChatStream(port, "forever", key="key")
    stream.read_until("tick")
    server.terminate()
    wait_until(lambda: is_refused(port))
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.wait() == ExitCode.STOPPED
    assert rest(server)[-1] == {"event": "exited", "code": 0}
    stream.close()


@both
def test_a_socket_alone(start: StartServer, backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "sock"
    server = start(backend, port=None, socket=str(path))
    assert read_until(server, "ready")["port"] is None
    assert over_socket(path, "GET", "/health")[0] == 200
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    assert over_socket(path, "POST", "/v1/chat/completions", chat)[0] == 401
    assert over_socket(path, "POST", "/v1/chat/completions", chat, key="key")[0] == 200
    server.terminate()
    assert server.wait() == ExitCode.STOPPED
    assert not path.exists()


@both
def test_cli_05_leaving_at_once_leaves_no_files(
    start: StartServer, backend: Backend, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    server = start(
        backend, ready_file=str(place / "ready"), token_file=str(place / "token"),
        socket=str(place / "sock"), drain_timeout_s=3600.0,
    )  # fmt: skip
    port = server.port()
    read_until(server, "ready")
    ChatStream(port, "deaf", key="key").read_until("tick")
    assert len(os.listdir(place)) == 3

    def pressed_until_gone() -> bool:
        server.ctrl_c()
        return server.process.poll() is not None

    wait_until(pressed_until_gone, 60.0)
    assert server.wait() == ExitCode.INTERRUPTED
    assert os.listdir(place) == []
    assert rest(server)[-1] == {"event": "exited", "code": 130}


@both
@pytest.mark.parametrize(("model", "code"), [("broken", "model_load_failed"),
                                             ("bug", "internal_error")])  # fmt: skip
def test_a_failed_load_is_a_fatal_event(
    start: StartServer, backend: Backend, model: str, code: str
) -> None:
    server = start(backend, model=model)
    assert server.wait() == ExitCode.FAILED
    *_, fatal, exited = rest(server)
    assert (fatal["event"], fatal["code"]) == ("fatal", code)
    assert exited == {"event": "exited", "code": 1}


def test_a_crash_of_the_first_load_is_a_fatal_event(start: StartServer) -> None:
    server = start("gunicorn", model="die")
    assert server.wait() == ExitCode.CRASHED
    *_, fatal, exited = rest(server)
    assert fatal["code"] == "crashed_while_loading"
    assert "SIGSEGV" in str(fatal["message"])
    assert exited == {"event": "exited", "code": 3}


def test_while_a_new_worker_loads_health_says_so_and_another_crash_is_survived_too(
    start: StartServer, tmp_path: Path
) -> None:
    gate, ready_file = tmp_path / "gate", tmp_path / "ready"
    gate.touch()
    server = start("gunicorn", model=f"wait {gate}", ready_file=str(ready_file))
    port = server.port()
    read_until(server, "ready")
    gate.unlink()
    for n in (1, 2):  # the second time, the worker is loading
        assert ready_file.exists() == (n == 1)
        (worker,) = psutil.Process(server.process.pid).children()
        worker.send_signal(signal.SIGABRT)
        assert read_until(server, "restarting")["attempt"] == n
        status, health = fetch(port, "/health")
        assert (status, health["status"]) == (503, "loading")
        assert not ready_file.exists()
    gate.touch()
    read_until(server, "ready")
    assert ready_file.exists()
    assert fetch(port, "/health")[0] == 200
