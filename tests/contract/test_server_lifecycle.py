"""The life of the server process, in real processes: bind, load, announce, serve, drain, exit."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from ferrum_local.http.config import HttpConfig
from ferrum_local.server import LOCAL_ENGINE
from ferrum_local.server.config import RESERVE_THREADS, ServeConfig
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.types import ModelSpec
from tests.fakes import wait_until
from tests.prompted_engine import FACTORY
from tests.server_process import ROOT, ChatStream, ServerProcess, StartServer, fetch, is_refused

SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
POSIX_ONLY = pytest.mark.skipif(os.name != "posix", reason="gunicorn needs POSIX")
BACKENDS = [pytest.param("gunicorn", marks=POSIX_ONLY), "werkzeug"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers with a scripted engine; ends whatever is left of them."""
    started: list[ServerProcess] = []

    def start_one(
        backend: str = "gunicorn",
        *,
        model: str = "ok",
        engine_factory: str = FACTORY,
        stdout: int = subprocess.PIPE,
        **fields: object,
    ) -> ServerProcess:
        config = msgspec.structs.replace(
            ServeConfig(models=(ModelSpec(id="tiny", path=model),), port=0, announce="json"),
            **fields,
        )
        log_path = tmp_path / f"server-{len(started)}.log"
        server = ServerProcess(
            config, log_path, engine_factory=engine_factory, backend=backend, stdout=stdout
        )
        started.append(server)
        return server

    yield start_one
    for server in started:
        server.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_announces_once_on_stdout_then_serves_and_stops_cleanly(
    start: StartServer, backend: str
) -> None:
    server = start(backend)
    ready = server.read_ready()
    assert ready["event"] == "ready"
    assert ready["host"] == "127.0.0.1"
    assert ready["port"] > 0
    assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
    assert ready["pid"] == server.process.pid
    assert ready["models"] == ["tiny"]
    assert set(ready) == {"event", "url", "host", "port", "pid", "version", "models"}

    status, health = fetch(ready["port"], "/health")
    assert (status, health["status"]) == (200, "healthy")
    stream = ChatStream(ready["port"], "hello")
    assert stream.read_rest()[-1] == "[DONE]"

    server.terminate()
    assert server.wait() == 0
    assert server.process.stdout is not None
    assert server.process.stdout.read() == b""
    assert "Traceback" not in server.log
    assert "Try it: curl http://127.0.0.1:" in server.log


@pytest.mark.parametrize("backend", BACKENDS)
def test_health_says_loading_until_the_model_is_loaded(
    start: StartServer, backend: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    server = start(backend, model=f"wait {gate}")
    status, health = server.get("/health")
    assert (status, health["status"]) == (503, "loading")
    assert server.get("/health/live")[0] == 200
    gate.touch()
    port = server.read_ready()["port"]
    assert fetch(port, "/health")[0] == 200


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_while_loading_stops_without_waiting_for_it(
    start: StartServer, backend: str, tmp_path: Path
) -> None:
    server = start(backend, model=f"wait {tmp_path / 'never'}")
    assert server.get("/health")[0] == 503
    server.ctrl_c()
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("model", "reason"),
    [("broken", "tiny.gguf is not a GGUF file."), ("bug", "ValueError: a bug")],
)
def test_failed_load_ends_the_command_with_one_line(
    start: StartServer, backend: str, model: str, reason: str
) -> None:
    server = start(backend, model=model)
    assert server.wait() == 1
    errors = [line for line in server.log.splitlines() if " ERROR " in line]
    assert len(errors) == 1
    assert errors[0].endswith(reason)
    assert "Traceback" not in server.log


@pytest.mark.parametrize("backend", BACKENDS)
def test_cli_01_port_in_use_is_one_line_before_anything_is_loaded(
    start: StartServer, backend: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start(backend, port=port, model="die")
        assert server.wait() == 1
    (line,) = server.log.splitlines()
    assert f"Port {port} on 127.0.0.1 is already in use" in line


@pytest.mark.parametrize("backend", BACKENDS)
def test_cli_02_localhost_prints_the_url_that_was_bound(start: StartServer, backend: str) -> None:
    server = start(backend, host="localhost")
    ready = server.read_ready()
    assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
    assert fetch(ready["port"], "/health")[0] == 200
    if "[::1]" in server.log:
        assert fetch(ready["port"], "/health", host="::1")[0] == 200
    else:
        assert "bound 127.0.0.1 only" in server.log


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["ctrl_c", "terminate"])
def test_cli_05_stopping_lets_an_open_stream_end(
    start: StartServer, backend: str, how: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    server = start(backend)
    port = server.read_ready()["port"]
    stream = ChatStream(port, f"wait {gate}")
    stream.read_until("before")

    getattr(server, how)()
    wait_until(lambda: is_refused(port))
    assert server.process.poll() is None
    gate.touch()
    rest = stream.read_rest()
    assert rest[-1] == "[DONE]"
    assert any("after" in data for data in rest)
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_that_outlives_the_drain_timeout_gets_a_last_error_event(
    start: StartServer, backend: str
) -> None:
    server = start(backend, drain_timeout_s=0.2)
    stream = ChatStream(server.read_ready()["port"], "forever")
    stream.read_until("tick")
    server.terminate()
    rest = stream.read_rest()
    assert set(json.loads(rest[-1])) == {"error"}
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", ["forever", "deaf"])
def test_cli_05_second_ctrl_c_leaves_at_once(start: StartServer, backend: str, order: str) -> None:
    server = start(backend, drain_timeout_s=3600.0)
    port = server.read_ready()["port"]
    stream = ChatStream(port, order)
    stream.read_until("tick")
    server.ctrl_c()
    server.wait_log("Stopping (SIGINT)")
    assert server.process.poll() is None

    def pressed_until_gone() -> bool:
        # Not too soon: a Ctrl-C that was passed on twice is one key press.
        server.ctrl_c()
        return server.process.poll() is not None

    wait_until(pressed_until_gone)
    assert server.wait() == 130
    assert "Traceback" not in server.log
    assert is_refused(port)


@POSIX_ONLY
def test_health_says_draining_on_a_connection_that_was_kept(
    start: StartServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    server = start()
    port = server.read_ready()["port"]
    stream = ChatStream(port, f"wait {gate}")
    stream.read_until("before")
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    kept.request("GET", "/health")
    assert json.loads(kept.getresponse().read())["status"] == "healthy"

    server.terminate()
    wait_until(lambda: is_refused(port))
    kept.request("GET", "/health")
    response = kept.getresponse()
    assert response.status == 503
    assert json.loads(response.read())["status"] == "draining"
    kept.close()
    gate.touch()
    assert stream.read_rest()[-1] == "[DONE]"
    assert server.wait() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_idle_connections_do_not_hold_up_the_stop(start: StartServer, backend: str) -> None:
    server = start(backend, drain_timeout_s=3600.0)
    port = server.read_ready()["port"]
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    kept.request("GET", "/health")
    assert kept.getresponse().read()
    with socket.create_connection(("127.0.0.1", port)):
        assert fetch(port, "/health")[0] == 200
        server.terminate()
        assert server.wait() == 0
    kept.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rt_07_health_answers_while_every_stream_and_thread_is_wanted(
    start: StartServer, backend: str
) -> None:
    max_streams = 3
    server = start(backend, http=HttpConfig(max_streams=max_streams))
    port = server.read_ready()["port"]
    streams = [ChatStream(port, "forever") for _ in range(max_streams)]
    n_threads = max_streams + RESERVE_THREADS
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * n_threads)]
    assert fetch(port, "/health")[0] == 200
    refused = ChatStream(port, "hello")
    assert refused.status == 503
    assert fetch(port, "/health")[0] == 200
    for sock in silent:
        sock.close()
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.skipif(not SMOLLM2.exists(), reason="the starter models are not fetched")
def test_cli_05_ctrl_c_during_a_real_prefill(start: StartServer, backend: str) -> None:
    server = start(backend, model=str(SMOLLM2), engine_factory=LOCAL_ENGINE, drain_timeout_s=0.1)
    port = server.read_ready()["port"]
    stream = ChatStream(port, "one two three " * 1000)
    assert stream.status == 200
    server.ctrl_c()
    assert "error" in json.loads(stream.read_rest()[-1])
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stdout_that_nobody_reads_is_survived(start: StartServer, backend: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    server = start(backend, stdout=writer)
    os.close(writer)
    server.wait_log("Ready:")
    assert server.get("/health")[0] == 200
    server.terminate()
    assert server.wait() == 0
    assert "Traceback" not in server.log
    assert "Exception ignored" not in server.log


@POSIX_ONLY
def test_a_closed_stdin_stdout_and_stderr_are_survived(tmp_path: Path) -> None:
    code = (
        "import sys; from ferrum_local.server import serve; "
        "from ferrum_local.server.config import ServeConfig; "
        "from ferrum_local.types import ModelSpec; "
        "c = ServeConfig(models=(ModelSpec(id='tiny', path='ok'),), port=int(sys.argv[1]), "
        "announce='json'); "
        "sys.exit(serve(c, engine_factory='tests.prompted_engine:PromptedEngine'))"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-c", code, str(port)],
        start_new_session=True,
    )
    try:
        wait_until(lambda: not is_refused(port), 60.0)
        wait_until(lambda: fetch(port, "/health")[0] == 200)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@POSIX_ONLY
def test_rt_07_requests_that_stall_half_way_lose_their_threads(start: StartServer) -> None:
    server = start(http=HttpConfig(max_streams=1))
    port = server.read_ready()["port"]
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * RESERVE_THREADS)]
    for sock in stalled:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: ")
    assert fetch(port, "/health")[0] == 200
    for sock in stalled:
        sock.close()


@POSIX_ONLY
def test_a_worker_that_dies_is_replaced_a_few_times_and_then_no_more(start: StartServer) -> None:
    server = start()
    port = server.read_ready()["port"]
    for n in (1, 2, 3):
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ChatStream(port, "crash")
        server.wait_log(f"({n} of 3)")
        wait_until(lambda n=n: server.log.count("Ready again") == n, 60.0)  # type: ignore[misc]
        assert fetch(port, "/health")[0] == 200
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ChatStream(port, "crash")
    assert server.wait() == ExitCode.CRASHED
    assert "SIGSEGV" in server.log
    assert server.process.stdout is not None
    assert server.process.stdout.read() == b""  # announced once


@POSIX_ONLY
def test_a_worker_that_dies_while_loading_is_not_started_again(start: StartServer) -> None:
    server = start(model="die")
    assert server.wait() == ExitCode.CRASHED
    assert server.log.count("SIGSEGV") == 1
    assert "while loading" in server.log


@POSIX_ONLY
def test_the_worker_leaves_when_the_supervisor_was_killed(start: StartServer) -> None:
    server = start()
    port = server.read_ready()["port"]
    (worker,) = psutil.Process(server.process.pid).children()
    server.process.kill()
    worker.wait(60)
    assert is_refused(port)


@POSIX_ONLY
def test_sigterm_to_the_whole_group_drains_too(start: StartServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = start()
    port = server.read_ready()["port"]
    stream = ChatStream(port, f"wait {gate}")
    stream.read_until("before")
    os.killpg(server.process.pid, signal.SIGTERM)
    wait_until(lambda: is_refused(port))
    gate.touch()
    assert stream.read_rest()[-1] == "[DONE]"
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01 what\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_request_gets_a_json_4xx(
    start: StartServer, backend: str, raw: bytes
) -> None:
    server = start(backend)
    port = server.read_ready()["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(raw)
        reply = b""
        while part := sock.recv(65536):
            reply += part
    head, _, body = reply.partition(b"\r\n\r\n")
    assert 400 <= int(head.split()[1]) < 500
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert fetch(port, "/health")[0] == 200
    assert "Traceback" not in server.log


def test_json_logs_are_one_object_a_line(start: StartServer) -> None:
    server = start(log_format="json")
    port = server.read_ready()["port"]
    ChatStream(port, "hello").read_rest()
    server.terminate()
    assert server.wait() == 0
    records = [json.loads(line) for line in server.log.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert any(r["message"].startswith("Listening on") for r in records)
    assert any(r["logger"] == "ferrum_local.access" and r.get("request_id") for r in records)
