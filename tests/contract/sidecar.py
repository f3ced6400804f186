"""``ferrum-local serve`` as an app starts it, and the app that is killed."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT, SMOLLM2
from tests.fakes import wait_until
from tests.server_process import CLIENT_TIMEOUT_S, fetch, kill_group

PATIENCE_S = 180.0  # for a server on a busy machine
PR_SET_CHILD_SUBREAPER = 36
SMALL = ("--model", f"smol={SMOLLM2}", "--ctx-size", "256", "--slots", "1")

Event = dict[str, Any]


SOURCE = (sys.executable, "-m", "ferrum_local")


def command_line(*arguments: str, program: Sequence[str] = SOURCE) -> list[str]:
    return [*program, "serve", *arguments]


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")}
    return {**clean, "PYTHONPATH": str(ROOT), **more}


class Sidecar:
    """The command with a pipe at its stdin and all events at its stdout.

    :ivar events: those that were read so far.
    """

    def __init__(
        self,
        log: Path,
        *arguments: str,
        announce: str = "events",
        pass_fds: Sequence[int] = (),
        env: dict[str, str] | None = None,
        program: Sequence[str] = SOURCE,
        cwd: Path = ROOT,
    ) -> None:
        self._log = log
        self.events: list[Event] = []
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                command_line("--port", "0", "--announce", announce, *arguments, program=program),
                cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                pass_fds=pass_fds, start_new_session=True, env=env or environment(),
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def wait_event(self, name: str) -> Event:
        """The next event of this name; blocks until it comes."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError(f"stdout ended before {name!r}:\n{self.log}")

    def read_to_end(self) -> list[str]:
        """The names of all events, once the process has ended."""
        assert self.process.stdout is not None
        self.events += [json.loads(line) for line in self.process.stdout]
        return [event["event"] for event in self.events]

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    def close(self) -> None:
        kill_group(self.process)
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def sidecar(log: Path, *arguments: str, **options: Any) -> Iterator[Sidecar]:
    started = Sidecar(log, *arguments, **options)
    try:
        yield started
    finally:
        started.close()


def post(port: int, path: str, body: Any = None, *, key: str | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_TIMEOUT_S)
    return _ask(connection, "POST", path, body, key)


def over_socket(
    path: str | Path, method: str, route: str, body: Any = None, *, key: str | None = None
) -> tuple[int, Any]:
    """One request over a Unix socket."""
    connection = http.client.HTTPConnection("localhost", timeout=CLIENT_TIMEOUT_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(CLIENT_TIMEOUT_S)
    connection.sock.connect(str(path))
    return _ask(connection, method, route, body, key)


def _ask(
    connection: http.client.HTTPConnection, method: str, route: str, body: Any, key: str | None
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        data = json.dumps(body) if body is not None else None
        connection.request(method, route, data, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def says_hello(port: int, *, key: str | None = None) -> bool:
    """Whether a real answer comes back."""
    chat = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    status, reply = post(port, "/v1/chat/completions", chat, key=key)
    return status == 200 and bool(reply["choices"][0]["message"]["content"])


def wait_healthy(port: int) -> list[int]:
    """Ask until the server is ready. :returns: every status that was seen."""
    seen: list[int] = []

    def is_healthy() -> bool:
        seen.append(fetch(port, "/health")[0])
        return seen[-1] == 200

    wait_until(is_healthy, PATIENCE_S)
    return seen


# An app of a few lines: it starts the server and waits for its own end.
APP = """\
import json, subprocess, sys, time
stdin, *command = sys.argv[1:]
server = subprocess.Popen(command, stdin=getattr(subprocess, stdin), stdout=subprocess.PIPE)
for line in server.stdout:
    print(line.decode(), end="", flush=True)
time.sleep(3600)
"""


class App:
    """A program that started a server and is killed without being asked."""

    def __init__(
        self,
        log: Path,
        *arguments: str,
        stdin: str,
        env: dict[str, str] | None = None,
        program: Sequence[str] = SOURCE,
        cwd: Path = ROOT,
    ) -> None:
        self.log = log
        command = command_line(
            "--port", "0", "--announce", "events", *arguments, program=program
        )  # fmt: skip
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", APP, stdin, *command],
                cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                start_new_session=True, env=env or environment(),
            )  # fmt: skip

    def wait_event(self, name: str) -> Event:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: Event = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(self.log.read_text("utf-8"))

    def kill(self) -> None:
        """As a task manager does, or the system when memory runs out: the app alone."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        kill_group(self.process)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Grandchildren whose parent was killed become ours: their exit code can be read."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def exit_code_of(pid: int) -> int:
    """Wait for an adopted process."""
    codes: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            codes.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    wait_until(has_ended, PATIENCE_S)
    return codes[0]
