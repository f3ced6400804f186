"""What the supervisor makes of signals and of a worker's end. Whole lives: the contract tests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import TypeAlias, cast

import pytest

if os.name != "posix":
    pytest.skip("the supervisor runs on POSIX only", allow_module_level=True)

from ferrum_local.server import supervisor as supervising
from ferrum_local.server.announce import Announcer
from ferrum_local.server.config import ServeConfig
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.server.listener import bind
from ferrum_local.server.protocol import WORKER_GAVE_UP
from ferrum_local.server.signals import SignalInbox
from ferrum_local.server.supervisor import MAX_RESTARTS, Supervisor, Worker
from ferrum_local.types import ModelSpec

Woken: TypeAlias = tuple[list[signal.Signals], list[int]]
SIGINT: Woken = ([signal.SIGINT], [])


class ScriptedInbox:
    """Gives what a test says that came, one entry a wait."""

    def __init__(self, *woken: Woken) -> None:
        self._woken = list(woken)

    def wait(self, timeout_s: float | None = None) -> Woken:
        return self._woken.pop(0)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    listener = bind("127.0.0.1", 0)
    config = ServeConfig(models=(ModelSpec(id="tiny", path="tiny.gguf"),))
    yield Supervisor(config, listener, Announcer(config), engine_factory="unused:unused")
    listener.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A real process that waits to be signalled; its status pipe reads as ended."""
    process = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE)
    reader, writer = os.pipe()
    os.close(writer)
    made = Worker(process, reader)
    yield made
    process.kill()
    made.close()


def watch(supervisor: Supervisor, worker: Worker, *woken: Woken) -> int | None:
    gone: Woken = ([], [worker.status_fd])
    return supervisor._watch(worker, cast(SignalInbox, ScriptedInbox(*woken, gone)))


def test_cli_05_a_ctrl_c_that_is_passed_on_twice_is_one(
    supervisor: Supervisor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "SAME_CTRL_C_S", 3600.0)
    assert watch(supervisor, worker, SIGINT, SIGINT) is None
    assert worker.process.wait() == -signal.SIGTERM


def test_cli_05_a_second_ctrl_c_ends_the_worker(
    supervisor: Supervisor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "SAME_CTRL_C_S", 0.0)
    assert watch(supervisor, worker, SIGINT, SIGINT) == ExitCode.INTERRUPTED


def test_repeated_sigterm_goes_on_draining(supervisor: Supervisor, worker: Worker) -> None:
    assert watch(supervisor, worker, ([signal.SIGTERM, signal.SIGTERM], [])) is None


def test_a_worker_that_does_not_stop_in_time_is_ended(
    supervisor: Supervisor, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "STOP_MARGIN_S", -3600.0)
    assert watch(supervisor, worker, ([signal.SIGTERM], []), ([], [])) == 1


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [(0, 0), (-signal.SIGTERM, 0), (WORKER_GAVE_UP, 1), (-signal.SIGSEGV, 3), (7, 3)],
)
def test_the_end_of_a_worker_that_never_was_ready(
    supervisor: Supervisor, status: int, exit_code: int
) -> None:
    assert supervisor._judge(status) == exit_code


def test_crashes_far_apart_are_forgiven_and_close_ones_are_not(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor._was_ready = True
    now_s = 0.0
    monkeypatch.setattr(supervising.time, "monotonic", lambda: now_s)
    for _ in range(3 * MAX_RESTARTS):
        now_s += supervising.RESTART_WINDOW_S / 2
        assert supervisor._judge(-signal.SIGSEGV) is None
    verdicts = [supervisor._judge(-signal.SIGKILL) for _ in range(MAX_RESTARTS)]
    assert verdicts[-1] == ExitCode.CRASHED
