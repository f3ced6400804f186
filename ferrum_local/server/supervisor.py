"""The command's own process on Linux and macOS: holds the port, watches the worker, stops it.

The worker is a fresh Python rather than a fork: GPU frameworks (Metal above all) do not
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
import sys
import time
from collections.abc import Iterator

import msgspec

from ferrum_local.server.announce import say_ready, say_stopping
from ferrum_local.server.config import EXIT_INTERRUPTED, SAME_CTRL_C_S, ServeConfig
from ferrum_local.server.listener import Listener
from ferrum_local.server.protocol import EXIT_FAILED, WorkerBoot, WorkerReport
from ferrum_local.server.signals import SignalInbox, stop_signals

log = logging.getLogger("ferrum_local.server")

MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0
# Past the drain timeout, for the last events to be written and the models to be freed.
STOP_MARGIN_S = 10.0

# The worker gets this process's import path; until it has it, it imports nothing but built-ins.
_BOOT = (
    "import sys, os; sys.path[:] = sys.argv.pop().split(os.pathsep); "
    "from ferrum_local.server.worker import main; main()"
)


class Worker:
    """One worker process and its two pipes."""

    def __init__(self, process: subprocess.Popen[bytes], status_fd: int) -> None:
        self.process = process
        self.status_fd = status_fd
        self.is_ready = False
        self._unread = b""

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
    """Runs one worker at a time until it is told to stop or the worker cannot go on."""

    def __init__(self, config: ServeConfig, listener: Listener, *, engine_factory: str) -> None:
        self._config = config
        self._listener = listener
        self._engine_factory = engine_factory
        self._stop_deadline: float | None = None
        self._impatient_from = 0.0  # another SIGINT from then on means: leave at once
        self._announced = False
        self._restarted_at: list[float] = []

    def run(self) -> int:
        """:returns: the exit code of the command."""
        with SignalInbox(stop_signals()) as inbox:
            while True:
                worker = self._spawn()
                inbox.watch(worker.status_fd)
                try:
                    exit_code = self._watch(worker, inbox)
                finally:
                    inbox.unwatch(worker.status_fd)
                    status = worker.close()
                if exit_code is None:
                    exit_code = self._judge(worker, status)
                if exit_code is not None:
                    return exit_code

    def _spawn(self) -> Worker:
        status_fd, worker_status_fd = os.pipe()
        socket_fds = tuple(sock.fileno() for sock in self._listener.sockets)
        try:
            with _stop_signals_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, os.pathsep.join(sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=2,  # stdout is for announcements; nothing native may write there
                    pass_fds=(worker_status_fd, *socket_fds),
                    bufsize=0,
                )
        finally:
            os.close(worker_status_fd)
        boot = WorkerBoot(
            config=self._config,
            engine_factory=self._engine_factory,
            socket_fds=socket_fds,
            status_fd=worker_status_fd,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; the status pipe tells
            process.stdin.write(msgspec.json.encode(boot) + b"\n")
        return Worker(process, status_fd)

    def _watch(self, worker: Worker, inbox: SignalInbox) -> int | None:
        """Until the worker is gone (None: look at how it ended) or was ended by us."""
        while True:
            timeout_s = None
            if self._stop_deadline is not None:
                timeout_s = max(0.0, self._stop_deadline - time.monotonic())
            signals, readable = inbox.wait(timeout_s)
            for received in signals:
                if self._stop_deadline is None:
                    self._begin_stop(worker, received)
                elif received == signal.SIGINT and time.monotonic() >= self._impatient_from:
                    worker.process.kill()
                    log.warning("Interrupted again: left at once")
                    return EXIT_INTERRUPTED
            if worker.status_fd in readable:
                reports = worker.read_reports()
                if reports is None:
                    return None
                for report in reports:
                    self._take(worker, report)
            elif self._stop_deadline is not None and time.monotonic() >= self._stop_deadline:
                worker.process.kill()
                log.error("The server did not stop in time and was ended")
                return 1

    def _begin_stop(self, worker: Worker, received: signal.Signals) -> None:
        say_stopping(self._config, received)
        self._impatient_from = time.monotonic() + SAME_CTRL_C_S
        self._stop_deadline = time.monotonic() + self._config.drain_timeout_s + STOP_MARGIN_S
        self._listener.close()
        worker.process.send_signal(signal.SIGTERM)

    def _take(self, worker: Worker, report: WorkerReport) -> None:
        if report.failure is not None:
            log.error("%s", report.failure)
            return
        worker.is_ready = True
        if self._stop_deadline is not None:
            return
        if self._announced:
            log.info("Ready again: %s", self._listener.url)
        else:
            self._announced = True
            say_ready(self._config, self._listener, report.models)

    def _judge(self, worker: Worker, status: int) -> int | None:
        """The exit code that a worker's end means; None: start another."""
        # SIGTERM may reach the whole process group, and the worker before it can drain.
        if status in (0, -signal.SIGTERM):
            return 0
        if status == EXIT_FAILED:
            return 1
        died = f"The server process died ({_describe_status(status)})"
        if self._stop_deadline is not None:
            log.error("%s while stopping", died)
            return 1
        if not worker.is_ready:
            log.error("%s while loading. --log-level debug shows more.", died)
            return 1
        now = time.monotonic()
        self._restarted_at = [t for t in self._restarted_at if now - t < RESTART_WINDOW_S]
        if len(self._restarted_at) >= MAX_RESTARTS:
            log.error("%s again, after %d restarts: giving up", died, MAX_RESTARTS)
            return 1
        self._restarted_at.append(now)
        log.error("%s: starting it again (%d of %d)", died, len(self._restarted_at), MAX_RESTARTS)
        return None


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """A process started meanwhile has them blocked until it is ready to handle them."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name
