"""A whole server in a process of its own, for tests of its life: started, signalled, watched."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ferrum_local.server.config import Backend, ServeConfig
from tests.fakes import wait_until

ROOT = Path(__file__).resolve().parents[1]
SERVE = """\
import sys, msgspec
from ferrum_local.server import serve
from ferrum_local.server.config import ServeConfig
backend, factory, config = sys.argv[1:]
sys.exit(serve(msgspec.json.decode(config, type=ServeConfig), backend=backend,
               engine_factory=factory))
"""
CLIENT_TIMEOUT_S = 60.0


class ServerProcess:
    """The command, in a process group of its own as a terminal gives it one."""

    def __init__(
        self,
        config: ServeConfig,
        log_path: Path,
        *,
        engine_factory: str,
        backend: Backend,
        stdout: int = subprocess.PIPE,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._log_path = log_path
        encoded = msgspec.json.encode(config).decode()
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, backend, engine_factory, encoded],
                stdin=stdin,
                stdout=stdout,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    @property
    def log(self) -> str:
        """Everything on stderr so far."""
        return self._log_path.read_text("utf-8")

    def wait_log(self, text: str) -> None:
        wait_until(lambda: text in self.log or self.process.poll() is not None, 60.0)
        assert text in self.log, self.log

    def port(self) -> int:
        """The bound port, from the log; known before the models are loaded."""
        self.wait_log("Listening on http")
        return int(self.log.split("Listening on http")[1].split(" ")[0].rsplit(":", 1)[1])

    def read_ready(self) -> dict[str, Any]:
        """The announcement; blocks until it is there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        announced: dict[str, Any] = json.loads(line)
        return announced

    def ctrl_c(self) -> None:
        """SIGINT to the whole process group, as a terminal sends it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM to the command alone, as a service manager's simplest form sends it."""
        self.process.terminate()

    def wait(self) -> int:
        return self.process.wait(60)

    def get(self, path: str) -> tuple[int, Any]:
        return fetch(self.port(), path)

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        kill_group(self.process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its children, which it leads as a group, and wait for it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def fetch(port: int, path: str, *, host: str = "127.0.0.1") -> tuple[int, Any]:
    """GET. :returns: the status and the decoded body."""
    connection = http.client.HTTPConnection(host, port, timeout=CLIENT_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class ChatStream:
    """One streamed chat completion, read event by event."""

    def __init__(self, port: int, order: str, *, key: str = "none", **fields: Any) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CLIENT_TIMEOUT_S)
        messages = [{"role": "user", "content": order}]
        body = json.dumps({"stream": True, "messages": messages, **fields})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._connection.request("POST", "/v1/chat/completions", body, headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status

    def read_until(self, text: str) -> None:
        """Read events up to one that holds ``text``."""
        while True:
            line = self._response.readline().decode()
            assert line, f"the stream ended before {text!r}"
            if text in line:
                return

    def read_rest(self) -> list[str]:
        """The data of the remaining events; complete chunked framing is part of the deal."""
        lines = self._response.read().decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    def close(self) -> None:
        self._connection.close()


def is_refused(port: int) -> bool:
    """Whether nothing listens on ``port`` any more."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=CLIENT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        # The listener closed between the handshake and the accept: ask again.
        return is_refused(port)
    return False


StartServer = Callable[..., ServerProcess]
