"""The command ended by Ctrl-C while native code works on a long prompt."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SMOLLM2, RunningServer
from tests.contract.live import load
from tests.contract.raw import Reply, post
from tests.fakes import wait_until
from tests.server_process import is_refused, kill_group

POSIX_ONLY = pytest.mark.skipif(os.name != "posix", reason="signals are sent as on POSIX")
# Tens of seconds of prefill on any machine that has no GPU.
LONG = {"prompt": " ".join(str(i * 7919 % 1000) for i in range(1800)), "max_tokens": 4}


class Command:
    """``ferrum-local serve`` as a terminal runs it: in a process group of its own."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ferrum_local", "serve", "--model", f"smol={SMOLLM2}",
                 "--port", "0", "--announce", "json", "--slots", "2", *arguments],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                start_new_session=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    def wait_ready(self) -> RunningServer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        ready = json.loads(line)
        return RunningServer(url=ready["url"], model=ready["models"][0], pid=ready["pid"])

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        kill_group(self.process)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    started = Command(tmp_path / "log", "--ctx-size", "8192", "--drain-timeout", "0")
    yield started
    started.close()


@POSIX_ONLY
def test_cli_05_one_ctrl_c_during_prefill_ends_all_at_once_and_says_so(command: Command) -> None:
    server = command.wait_ready()
    replies: dict[bool, Reply] = {}

    def ask(stream: bool) -> None:
        replies[stream] = post(
            server.url, "/v1/completions", {**LONG, "prompt": f"{stream} {LONG['prompt']}",
                                            "stream": stream},
        )  # fmt: skip

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    for thread in threads:
        thread.start()
    wait_until(lambda: load(server).running == 2, 60)
    command.ctrl_c()
    assert command.process.wait(60) == 0
    for thread in threads:
        thread.join()
    # Both were told, properly, and neither had got as far as a token.
    assert replies[False].status == 503
    assert replies[False].error["type"] == "service_unavailable_error"
    assert "retry-after" in replies[False].headers
    (event,) = replies[True].events
    assert event["error"]["type"] == "service_unavailable_error"
    assert command.log.count("generated=0") >= 1
    assert_clean(command)


@POSIX_ONLY
def test_cli_05_a_second_ctrl_c_during_prefill_leaves_even_if_it_should_drain(
    tmp_path: Path,
) -> None:
    command = Command(tmp_path / "log", "--ctx-size", "8192", "--drain-timeout", "600")
    try:
        server = command.wait_ready()
        failures: list[Exception] = []

        def ask() -> None:
            try:
                post(server.url, "/v1/completions", LONG)
            except (http.client.HTTPException, OSError) as error:
                failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: load(server).running == 1, 60)
        command.ctrl_c()
        wait_until(lambda: is_refused(server.port), 60)
        assert command.process.poll() is None

        def pressed_until_gone() -> bool:
            command.ctrl_c()
            return command.process.poll() is not None

        wait_until(pressed_until_gone, 60)
        assert command.process.wait() == 130
        thread.join()
        assert failures
        assert_clean(command)
    finally:
        command.close()


def assert_clean(command: Command) -> None:
    for bad in ("Traceback", "Exception ignored", "Error in", "terminate called"):
        assert bad not in command.log, command.log
    stdout: Any = command.process.stdout
    assert stdout.read() == b""
