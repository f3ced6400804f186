"""The command's own process on Linux and macOS: holds the port, watches the worker, stops it.

The worker is a fresh process rather than a fork: GPU frameworks (Metal above all) do not
survive a fork. That is also why gunicorn's arbiter, which forks, is not used but its
gthread worker is; a control socket, which belongs to the arbiter, does not exist here.

The two talk over two pipes. The worker's stdin carries its configuration and stays open
after it: when it ends, the supervisor is gone. The status pipe carries ``WorkerReport``
lines up; when it ends, the worker is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

import msgspec

from ferrum_local.processes import helper_command
from ferrum_local.server.announce import Announcer
from ferrum_local.server.config import SAME_CTRL_C_S, ServeConfig
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.server.lifelines import Lifeline
from ferrum_local.server.listener import Listener
from ferrum_local.server.protocol import (
    WORKER_GAVE_UP,
    Failed,
    Loaded,
    Progress,
    StopOrder,
    StopWanted,
    WorkerBoot,
    WorkerReport,
    encode_down,
)
from ferrum_local.server.signals import SignalInbox, stop_signals

log = logging.getLogger("ferrum_local.server")

MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0
# Past the drain timeout, for the last events to be written and the models to be freed.
STOP_MARGIN_S = 10.0

_WORKER = "ferrum_local.server.worker:main"

# glibc gives threads arenas of their own, which keep what one large request took: the memory of
# a server under mixed load grew by 60 MiB.
WORKER_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}


class Worker:
    """One worker process and its two pipes."""

    def __init__(self, process: subprocess.Popen[bytes], status_fd: int) -> None:
        self.process = process
        self.status_fd = status_fd
        self._unread = b""

    def tell(self, message: WorkerBoot | StopOrder) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; the status pipe tells
            self.process.stdin.write(encode_down(message))

    def read_reports(self) -> list[WorkerReport] | None:
        """The reports that came; None when the worker is gone. Call once the fd is readable."""
        data = os.read(self.status_fd, 65536)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [msgspec.json.decode(line, type=WorkerReport) for line in lines]

    def close(self) -> int:
        """Wait for the process, free the pipes, return its exit status as Popen has it."""
        status = self.process.wait()
        os.close(self.status_fd)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return status


class Supervisor:
    """Runs one worker at a time until it is told to stop or the worker cannot go on.

    :param lifelines: what ends the server when it is cut.
    """

    def __init__(
        self,
        config: ServeConfig,
        listener: Listener,
        announcer: Announcer,
        *,
        engine_factory: str,
        lifelines: Sequence[Lifeline] = (),
    ) -> None:
        self._config = config
        self._listener = listener
        self._announcer = announcer
        self._engine_factory = engine_factory
        self._lifelines = {line.fileno(): line for line in lifelines}
        self._stop_deadline: float | None = None
        self._impatient_from = 0.0  # another SIGINT from then on means: leave at once
        self._was_ready = False
        self._restarted_at: list[float] = []

    def run(self) -> ExitCode:
        """:returns: the exit code of the command."""
        with SignalInbox(stop_signals()) as inbox:
            for fd in self._lifelines:
                inbox.watch(fd)
            while True:
                worker = self._spawn()
                inbox.watch(worker.status_fd)
                try:
                    exit_code = self._watch(worker, inbox)
                finally:
                    inbox.unwatch(worker.status_fd)
                    status = worker.close()
                if exit_code is None:
                    exit_code = self._judge(status)
                if exit_code is not None:
                    return exit_code

    def _spawn(self) -> Worker:
        status_fd, worker_status_fd = os.pipe()
        socket_fds = tuple(sock.fileno() for sock in self._listener.sockets)
        try:
            with _stop_signals_blocked():
                process = subprocess.Popen(
                    helper_command(_WORKER),
                    stdin=subprocess.PIPE,
                    stdout=2,  # stdout is for announcements; nothing native may write there
                    pass_fds=(worker_status_fd, *socket_fds),
                    bufsize=0,
                    env={**WORKER_ENVIRONMENT, **os.environ},
                )
        finally:
            os.close(worker_status_fd)
        worker = Worker(process, status_fd)
        worker.tell(
            WorkerBoot(
                config=self._config,
                engine_factory=self._engine_factory,
                socket_fds=socket_fds,
                status_fd=worker_status_fd,
                supervisor_pid=os.getpid() if self._lifelines else None,
            )
        )
        return worker

    def _watch(self, worker: Worker, inbox: SignalInbox) -> ExitCode | None:
        """Until the worker is gone (None: look at how it ended) or was ended by us."""
        while True:
            timeout_s = None
            if self._stop_deadline is not None:
                timeout_s = max(0.0, self._stop_deadline - time.monotonic())
            signals, readable = inbox.wait(timeout_s)
            for received in signals:
                if self._stop_deadline is None:
                    self._begin_stop(worker, received.name)
                elif received == signal.SIGINT and time.monotonic() >= self._impatient_from:
                    worker.process.kill()
                    log.warning("Interrupted again: left at once")
                    return ExitCode.INTERRUPTED
            for fd in self._lifelines.keys() & set(readable):
                if self._lifelines[fd].is_cut():
                    inbox.unwatch(fd)  # it stays readable
                    if self._stop_deadline is not None:
                        worker.process.kill()
                        return ExitCode.STOPPED
                    self._begin_stop(worker, self._lifelines.pop(fd).reason, grace_s=0.0)
            if worker.status_fd in readable:
                reports = worker.read_reports()
                if reports is None:
                    return None
                for report in reports:
                    self._take(worker, report)
            elif self._stop_deadline is not None and time.monotonic() >= self._stop_deadline:
                worker.process.kill()
                self._announcer.fatal(
                    "stop_timeout", "The server did not stop in time and was ended"
                )
                return ExitCode.FAILED

    def _begin_stop(self, worker: Worker, reason: str, *, grace_s: float | None = None) -> None:
        """:param grace_s: for running requests; None: as configured."""
        if grace_s is not None:
            worker.tell(StopOrder(grace_s=grace_s))
        else:
            grace_s = self._config.drain_timeout_s
        self._announcer.draining(reason, grace_s=grace_s)
        self._impatient_from = time.monotonic() + SAME_CTRL_C_S
        self._stop_deadline = time.monotonic() + grace_s + STOP_MARGIN_S
        self._listener.close()
        worker.process.send_signal(signal.SIGTERM)

    def _take(self, worker: Worker, report: WorkerReport) -> None:
        if isinstance(report, Progress):
            self._announcer.loading(report.model, report.percent)
        elif isinstance(report, Failed):
            self._announcer.fatal(report.code, report.message)
        elif isinstance(report, StopWanted):
            if self._stop_deadline is None:
                self._begin_stop(worker, "shutdown_requested")
        elif isinstance(report, Loaded):
            self._was_ready = True
            self._announcer.ready(self._listener, report.models)

    def _judge(self, status: int) -> ExitCode | None:
        """The exit code that a worker's end means; None: start another."""
        # SIGTERM may reach the whole process group, and the worker before it can drain.
        if status in (0, -signal.SIGTERM):
            return ExitCode.STOPPED
        if status == WORKER_GAVE_UP:
            return ExitCode.FAILED
        reason, hint = _describe_status(status)
        died = f"The server process died ({reason}{hint})"
        if self._stop_deadline is not None:
            self._announcer.fatal("crashed_while_stopping", f"{died} while stopping")
            return ExitCode.CRASHED
        if not self._was_ready:
            self._announcer.fatal(
                "crashed_while_loading", f"{died} while loading. --log-level debug shows more."
            )
            return ExitCode.CRASHED
        now = time.monotonic()
        self._restarted_at = [t for t in self._restarted_at if now - t < RESTART_WINDOW_S]
        if len(self._restarted_at) >= MAX_RESTARTS:
            self._announcer.fatal(
                "crash_loop", f"{died} again, after {MAX_RESTARTS} restarts: giving up"
            )
            return ExitCode.CRASHED
        self._restarted_at.append(now)
        n_restarts = len(self._restarted_at)
        self._announcer.restarting(
            reason, f"{died}: starting it again", attempt=n_restarts, limit=MAX_RESTARTS
        )
        return None


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """A process started meanwhile has them blocked until it is ready to handle them."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _describe_status(status: int) -> tuple[str, str]:
    """What ended it, as events have it, and what a person may make of that."""
    if status >= 0:
        return f"exit code {status}", ""
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return name, ", perhaps out of memory" if name == "SIGKILL" else ""
