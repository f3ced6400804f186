"""The process that serves, on Linux and macOS: gunicorn's gthread worker with the engine in it."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from typing import NoReturn

import msgspec

from ferrum_local.server.engine_life import EngineLife, Failure, describe_failure, make_engine
from ferrum_local.server.lifelines import die_with
from ferrum_local.server.logs import configure_logging
from ferrum_local.server.offline import refuse_connections
from ferrum_local.server.protocol import (
    WORKER_GAVE_UP,
    Failed,
    Loaded,
    Progress,
    StopWanted,
    WorkerBoot,
    WorkerReport,
    decode_down,
)
from ferrum_local.server.signals import stop_signals

log = logging.getLogger("ferrum_local.server")

SUPERVISOR_FD = 0  # stdin: the configuration, then nothing until the supervisor is gone


def main() -> NoReturn:
    """Serve until told to stop. The supervisor starts this with the stop signals blocked."""
    ignored = [s for s in stop_signals() if s != signal.SIGTERM]
    for number in ignored:
        # Ctrl-C reaches the whole process group; what it means is the supervisor's to decide.
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, *ignored])
    boot = decode_down(_read_line(SUPERVISOR_FD), WorkerBoot)
    config = boot.config
    configure_logging(config.log_format, config.log_level, with_content=config.http.log_content)
    if config.offline:
        refuse_connections()
    if boot.supervisor_pid is not None:
        die_with(boot.supervisor_pid)
    if config.log_level.lower() == "debug":
        faulthandler.enable()
    reporter = Reporter(boot.status_fd)
    try:
        _serve(boot, reporter)
    except Exception as exc:
        _leave_failed(reporter, describe_failure(exc))
    _leave(0)


class Reporter:
    """The worker's end of the status pipe."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, report: WorkerReport) -> None:
        with self._lock:
            try:
                os.write(self._fd, msgspec.json.encode(report) + b"\n")
            except BrokenPipeError:
                log.debug("The supervisor is gone")  # the end of stdin makes us stop


def _serve(boot: WorkerBoot, reporter: Reporter) -> None:
    # All imported late: a SIGTERM during these imports just ends the process, as it should.
    config = boot.config
    engine = make_engine(boot.engine_factory, config)
    life = EngineLife(
        engine,
        on_progress=lambda model, percent: reporter.send(Progress(model=model, percent=percent)),
        on_ready=lambda models: _report_ready(reporter, models),
        on_failed=lambda failure: _leave_failed(reporter, failure),
        on_closed=lambda: server.wake(),
    )
    if engine.import_for_load():
        life.load_early()  # in native code, for the most part: the imports below go on beside it
    from ferrum_local.http.app import create_app
    from ferrum_local.server.gthread import GthreadServer

    server = GthreadServer(
        create_app(engine, config.http, on_shutdown=lambda: reporter.send(StopWanted())),
        life,
        [socket.socket(fileno=fd) for fd in boot.socket_fds],
        max_streams=config.http.max_streams,
        head_timeout_s=config.http.head_timeout_s,
        client_timeout_s=config.http.client_timeout_s,
        drain_timeout_s=config.drain_timeout_s,
        supervisor_fd=SUPERVISOR_FD,
    )
    server.init_process()  # gunicorn's name for: set up, then run until stopped


def _report_ready(reporter: Reporter, models: tuple[str, ...]) -> None:
    # What is there now stays until the end. Looking through it again and again for garbage
    # stopped all threads for up to 60 ms each time.
    gc.collect()
    gc.freeze()
    reporter.send(Loaded(models=models))


def _leave_failed(reporter: Reporter, failure: Failure) -> NoReturn:
    reporter.send(Failed(code=failure.code, message=failure.message))
    _leave(WORKER_GAVE_UP)


def _leave(status: int) -> NoReturn:
    """End at once: the interpreter's own exit would join threads that a stuck client or a
    native call may hold for good, and run ``__del__`` of native objects in any order."""
    logging.shutdown()
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            pass  # nobody reads it any more
    os._exit(status)


def _read_line(fd: int) -> bytes:
    """Unbuffered, so that what follows the line stays in the pipe."""
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(fd, 65536)
        if not part:
            os._exit(0)  # the supervisor is gone already
        data += part
    return data
