"""A server that an app starts: what it is told, and that it never outlives the app.

The real command with a real model; killed, crashed and shut down as apps and systems do it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ferrum_local.server.exit_codes import ExitCode
from tests.conftest import ROOT, SMOLLM2
from tests.contract.sidecar import (
    PATIENCE_S,
    SMALL,
    App,
    adopting_orphans,
    command_line,
    environment,
    exit_code_of,
    over_socket,
    post,
    says_hello,
    sidecar,
    wait_healthy,
)
from tests.server_process import fetch, is_refused

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="processes and signals as on POSIX"),
    pytest.mark.skipif(not SMOLLM2.exists(), reason="the starter models are not fetched"),
]
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Events and the ready file


def test_life_01_an_app_is_told_of_every_state_and_the_ready_file_lives_as_long(
    tmp_path: Path,
) -> None:
    ready_file = tmp_path / "ready.json"
    # What a launch that was killed has left.
    left = {"event": "ready", "url": "", "host": "", "port": 1, "pid": 1, "version": "",
            "models": []}  # fmt: skip
    ready_file.write_text(json.dumps(left))
    with sidecar(tmp_path / "log", *SMALL, "--ready-file", str(ready_file)) as server:
        listening = server.wait_event("listening")
        assert not ready_file.exists()
        ready = server.wait_event("ready")
        assert set(ready) == {"event", "url", "host", "port", "pid", "version", "models"}
        assert ready["pid"] == server.process.pid
        assert ready["models"] == ["smol"]
        assert {k: listening[k] for k in ("url", "port", "pid")} == {
            k: ready[k] for k in ("url", "port", "pid")
        }
        assert json.loads(ready_file.read_bytes()) == ready
        assert mode_of(ready_file) == 0o600
        assert says_hello(ready["port"])

        server.process.terminate()
        assert server.wait() == ExitCode.STOPPED
        names = server.read_to_end()
        assert names[0] == "listening" and names[-3:] == ["ready", "draining", "exited"]
        percents = [e["percent"] for e in server.events if e["event"] == "loading"]
        assert percents == sorted(set(percents))
        assert percents[0] == 0 and percents[-1] == 100 and len(percents) > 2
        assert server.events[-2] == {"event": "draining", "reason": "SIGTERM", "grace_s": 10.0}
        assert server.events[-1] == {"event": "exited", "code": 0}
    assert os.listdir(tmp_path) == ["log"]


def test_life_01_events_on_a_descriptor_leave_the_one_line_on_stdout_alone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with sidecar(
        tmp_path / "log", *SMALL, "--events-fd", str(writer), announce="json", pass_fds=[writer]
    ) as server:
        os.close(writer)
        ready = server.wait_event("ready")
        # No helper process holds the descriptor: its end is the end of the server.
        server.process.terminate()
        assert server.wait() == ExitCode.STOPPED
        assert server.read_to_end() == ["ready"]
        with os.fdopen(reader, "rb") as events:
            told = [json.loads(line) for line in events]
    assert ready in told
    assert told[-1] == {"event": "exited", "code": 0}


@LINUX_ONLY
def test_cli_03_a_model_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.gguf"
    os.symlink(os.fsencode(SMOLLM2), path)
    with sidecar(
        tmp_path / "log", "--model", os.fsdecode(path), "--ctx-size", "256", "--slots", "1"
    ) as server:
        assert says_hello(server.wait_event("ready")["port"])


def refused(tmp_path: Path, *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    """The exit code, events and log of a command that cannot serve."""
    done = subprocess.run(
        command_line("--announce", "events", *arguments), cwd=tmp_path, env=environment(),
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return (
        done.returncode,
        [json.loads(line) for line in done.stdout.splitlines()],
        done.stderr.decode("utf-8"),
    )


def test_cli_01_a_port_in_use_is_a_fatal_event_with_its_code(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, events, _ = refused(tmp_path, *SMALL, "--port", port)
    assert code == ExitCode.FAILED
    assert [(e["event"], e["code"]) for e in events] == [("fatal", "port_in_use"), ("exited", 1)]
    assert port in str(events[0]["message"])


def test_cli_03_life_06_a_missing_model_is_a_fatal_event_in_utf_8(tmp_path: Path) -> None:
    done = subprocess.run(
        command_line("--announce", "events", "--model", "Željko 模型/🦀.gguf"), cwd=tmp_path,
        env=environment(LC_ALL="C", PYTHONIOENCODING="ascii"),
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE
    fatal, exited = (json.loads(line) for line in done.stdout.decode("utf-8").splitlines())
    assert fatal["code"] == "model_load_failed"
    assert "🦀.gguf" in fatal["message"]
    assert exited == {"event": "exited", "code": 2}
    assert "Traceback" not in done.stderr.decode("utf-8")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--exit-on-stdin-close",), "stdin is not a pipe"),
        (("--events-fd", "63"), "63 is not open"),
        (("--ready-file", "none/ready"), "there is no directory"),
        (("--ready-file", "notes.txt"), "was not written by ferrum-local"),
        (("--token-file", "notes.txt"), "was not written by ferrum-local"),
        (("--ready-file", "."), "is not a file"),
    ],
)
def test_cli_03_what_an_app_gets_wrong_is_one_line_and_harms_no_file(
    tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("fluff, my own\nnotes\n")
    code, events, log = refused(tmp_path, *SMALL, "--port", "0", *arguments)
    assert code == ExitCode.USAGE
    assert [e["event"] for e in events if e["event"] != "listening"] == ["fatal", "exited"]
    assert reason in log and "Traceback" not in log
    assert notes.read_text() == "fluff, my own\nnotes\n"
    assert os.listdir(tmp_path) == ["notes.txt"]


# Never outlives its parent


@LINUX_ONLY
@pytest.mark.parametrize(
    ("flag", "stdin", "reason"),
    [
        ("--exit-with-parent", "DEVNULL", "parent_exited"),
        ("--exit-on-stdin-close", "PIPE", "stdin_closed"),
    ],
)
def test_life_01_a_killed_parent_takes_the_server_along_and_nothing_is_left(
    tmp_path: Path, flag: str, stdin: str, reason: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    files = [
        "--ready-file", str(place / "ready"), "--token-file", str(place / "token"),
        "--socket", str(place / "sock"),
    ]  # fmt: skip
    with adopting_orphans():
        app = App(tmp_path / "log", *SMALL, *files, flag, stdin=stdin)
        try:
            ready = app.wait_event("ready")
            assert sorted(os.listdir(place)) == ["ready", "sock", "token"]
            (worker,) = psutil.Process(ready["pid"]).children()
            app.kill()
            assert exit_code_of(ready["pid"]) == ExitCode.STOPPED
            # The supervisor waited for its worker: no zombie, nobody holds the port.
            assert not psutil.pid_exists(worker.pid)
            assert is_refused(ready["port"])
            assert os.listdir(place) == []
            assert f"Stopping ({reason})" in app.log.read_text("utf-8")
        finally:
            app.close()


@LINUX_ONLY
def test_life_01_a_parent_that_is_killed_before_the_model_is_loaded(tmp_path: Path) -> None:
    with adopting_orphans():
        app = App(tmp_path / "log", *SMALL, "--exit-with-parent", stdin="DEVNULL")
        try:
            listening = app.wait_event("listening")
            app.kill()
            assert exit_code_of(listening["pid"]) == ExitCode.STOPPED
            assert is_refused(listening["port"])
        finally:
            app.close()


@LINUX_ONLY
def test_life_01_a_running_answer_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    with adopting_orphans():
        app = App(
            tmp_path / "log", *SMALL, "--exit-with-parent", "--drain-timeout", "3600",
            stdin="DEVNULL",
        )  # fmt: skip
        try:
            ready = app.wait_event("ready")
            body = json.dumps({"prompt": "One two", "max_tokens": 200, "ignore_eos": True,
                               "stream": True})  # fmt: skip
            with socket.create_connection(("127.0.0.1", ready["port"]), PATIENCE_S) as client:
                client.sendall(
                    f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                assert client.recv(1)
                app.kill()
                assert exit_code_of(ready["pid"]) == ExitCode.STOPPED
        finally:
            app.close()


@LINUX_ONLY
def test_life_01_a_killed_supervisor_takes_its_worker_along(tmp_path: Path) -> None:
    with sidecar(tmp_path / "log", *SMALL, "--exit-with-parent") as server:
        port = server.wait_event("ready")["port"]
        worker = server.worker()
        # A worker that native code keeps from noticing anything: only the kernel can end it.
        worker.suspend()
        server.process.kill()
        worker.wait(PATIENCE_S)
        assert is_refused(port)


# A crash in native code


def test_life_01_a_native_abort_is_survived_and_a_crash_loop_ends_with_its_own_code(
    tmp_path: Path,
) -> None:
    ready_file = tmp_path / "ready"
    with sidecar(tmp_path / "log", *SMALL, "--ready-file", str(ready_file)) as server:
        port = server.wait_event("ready")["port"]
        pids = {server.worker().pid}
        for n, how in enumerate((signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL), start=1):
            server.worker().send_signal(how)
            event = server.wait_event("restarting")
            assert event == {"event": "restarting", "reason": how.name, "attempt": n, "limit": 3}
            # The port stays bound: who asks meanwhile waits or gets a 503, and is never refused.
            assert set(wait_healthy(port)) <= {200, 503}
            ready = server.wait_event("ready")
            assert (ready["port"], ready["pid"]) == (port, server.process.pid)
            assert json.loads(ready_file.read_bytes()) == ready
            assert says_hello(port)
            pids.add(server.worker().pid)
        assert len(pids) == 4
        server.worker().send_signal(signal.SIGABRT)
        assert server.wait() == ExitCode.CRASHED
        assert server.read_to_end()[-2:] == ["fatal", "exited"]
        assert server.events[-2]["code"] == "crash_loop"
        assert "SIGABRT" in server.events[-2]["message"]
        assert server.events[-1] == {"event": "exited", "code": 3}
    assert not ready_file.exists()


# Shutdown, keys, socket


def test_life_01_shutdown_over_http_needs_the_key_of_this_launch(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with sidecar(tmp_path / "log", *SMALL, "--token-file", str(token)) as server:
        port = server.wait_event("ready")["port"]
        key = token.read_text("ascii").strip()
        assert len(key) > 40
        assert mode_of(token) == 0o600
        assert key not in server.log and key not in json.dumps(server.events)
        assert post(port, "/shutdown")[0] == 401
        assert post(port, "/shutdown", key="fl-wrong")[0] == 401
        assert not says_hello(port)
        assert says_hello(port, key=key)
        assert server.process.poll() is None

        assert post(port, "/shutdown", key=key) == (200, {"status": "draining"})
        assert server.wait() == ExitCode.STOPPED
        assert server.read_to_end()[-2:] == ["draining", "exited"]
        assert server.events[-2]["reason"] == "shutdown_requested"
        assert not token.exists()


def test_a_socket_alone_is_for_its_owner_and_has_no_port(tmp_path: Path) -> None:
    path = tmp_path / "ferrum.sock"
    with socket.socket(socket.AF_UNIX) as left_over:  # by a server that was killed
        left_over.bind(str(path))
    arguments = [*SMALL, "--socket", str(path), "--announce", "events"]
    server = subprocess.Popen(
        command_line(*arguments), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment(), umask=0,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        events = (json.loads(line) for line in server.stdout)
        ready = next(event for event in events if event["event"] == "ready")
        assert (ready["url"], ready["port"]) == ("http://localhost", None)
        assert ready["socket"] == str(path)
        assert mode_of(path) == 0o600
        assert not [c for p in psutil.Process(server.pid).children()
                    for c in p.net_connections("inet")]  # fmt: skip
        assert over_socket(path, "GET", "/health")[0] == 200
        chat = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        assert over_socket(path, "POST", "/v1/chat/completions", chat)[0] == 200

        code, told, _ = refused(tmp_path, *arguments)  # it is in use
        assert (code, told[0]["code"]) == (ExitCode.FAILED, "socket_in_use")
        assert over_socket(path, "GET", "/health")[0] == 200

        # Only the owner can connect, so there is nobody to keep out with a key.
        assert over_socket(path, "POST", "/shutdown")[0] == 200
        assert server.wait(PATIENCE_S) == ExitCode.STOPPED
        assert not path.exists()
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def test_a_socket_beside_a_port_and_a_file_that_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "ferrum.sock"
    path.write_text("mine")
    code, told, _ = refused(tmp_path, *SMALL, "--port", "0", "--socket", str(path))
    assert (code, told[0]["code"]) == (ExitCode.FAILED, "bind_failed")
    assert path.read_text() == "mine"
    path.unlink()
    with sidecar(tmp_path / "log", *SMALL, "--socket", str(path)) as server:
        ready = server.wait_event("ready")
        assert fetch(ready["port"], "/health")[0] == 200
        assert over_socket(path, "GET", "/health")[0] == 200
        # Whoever reaches the port could be anybody: a key is needed on the socket, too.
        assert post(ready["port"], "/shutdown")[0] == 403
        assert over_socket(path, "POST", "/shutdown")[0] == 403
        server.process.terminate()
        assert server.wait() == ExitCode.STOPPED
    assert not path.exists()


def test_life_04_an_app_that_stops_reading_loses_events_and_nothing_else(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)  # no room is left
    except BlockingIOError:
        os.set_blocking(writer, True)
    with sidecar(
        tmp_path / "log", *SMALL, "--events-fd", str(writer), announce="json", pass_fds=[writer]
    ) as server:
        os.close(writer)
        assert says_hello(server.wait_event("ready")["port"])
        server.process.terminate()
        assert server.wait() == ExitCode.STOPPED
        assert "Nobody reads the events" in server.log
    os.close(reader)
