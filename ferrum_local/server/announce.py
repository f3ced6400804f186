"""What is said when the server listens, loads, is ready, stops or cannot go on: to people in the
log, to programs as events and as a ready file."""

from __future__ import annotations

import logging
import os
import threading

import msgspec

from ferrum_local import __version__
from ferrum_local.errors import ConfigError, FerrumError
from ferrum_local.server.config import ServeConfig
from ferrum_local.server.engine_life import INTERNAL_ERROR
from ferrum_local.server.events import (
    Draining,
    Event,
    EventWriter,
    Exited,
    Fatal,
    Listening,
    Loading,
    Ready,
    Restarting,
    as_line,
    stdout_fd,
    write_line,
)
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.server.launch_files import LaunchFile
from ferrum_local.server.listener import WILDCARDS, Listener

log = logging.getLogger("ferrum_local.server")


class Announcer:
    """Tells people and programs what becomes of one server. Safe from any thread.

    The ready file exists while requests are served: not before, not while a worker is started
    again, not while the server drains.

    :raises ConfigError: the ready file or the events descriptor cannot be used.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._writer = EventWriter(to_stdout=config.announce == "events", fd=config.events_fd)
        self._ready_file: LaunchFile | None = None
        self._was_ready = False
        self._stopping = False
        self._exited = False
        if config.ready_file is not None:
            self._ready_file = LaunchFile(
                config.ready_file, flag="--ready-file", is_ours=_is_ready_line
            )

    def listening(self, listener: Listener, config: ServeConfig) -> None:
        """:param config: as it is served, with the key of this launch."""
        self._config = config
        if self._ready_file is not None:
            self._ready_file.clear()
        where = " and ".join(listener.bound_urls)
        if listener.host in WILDCARDS:
            where += " (all networks of this machine)"
        names = ", ".join(model.id for model in self._config.models) or "no model"
        log.info("Listening on %s (loading %s)", where, names)
        if listener.note:
            log.info("%s", listener.note)
        if not listener.is_local and not self._config.http.needs_key:
            log.warning(
                "--insecure: everyone who can reach this machine over a network can use the server"
            )
        self._write(
            Listening(
                url=listener.url,
                host=listener.host,
                port=listener.port,
                pid=os.getpid(),
                version=__version__,
                socket=listener.socket_path,
            )
        )

    def loading(self, model: str, percent: int) -> None:
        self._write(Loading(model=model, percent=percent))

    def ready(self, listener: Listener, models: tuple[str, ...]) -> None:
        event = Ready(
            url=listener.url,
            host=listener.host,
            port=listener.port,
            pid=os.getpid(),
            version=__version__,
            models=models,
            socket=listener.socket_path,
        )
        with self._lock:
            if self._stopping:
                return
            is_first, self._was_ready = not self._was_ready, True
            self._put_ready_file(as_line(event))
            self._writer.write(event)
        if not is_first:
            log.info("Ready again: %s", listener.url)
            return
        log.info("Ready: %s serves %s", listener.url, ", ".join(models))
        log.info("Try it: %s", self._example(listener))
        stdout = stdout_fd() if self._config.announce == "json" else None
        if stdout is not None:
            write_line(stdout, as_line(event))

    def restarting(self, reason: str, message: str, *, attempt: int, limit: int) -> None:
        log.error("%s (%d of %d)", message, attempt, limit)
        with self._lock:
            self._drop_ready_file()
            self._writer.write(Restarting(reason=reason, attempt=attempt, limit=limit))

    def draining(self, reason: str, *, grace_s: float) -> None:
        log.info(
            "Stopping (%s): requests that still run have %g s to end%s",
            reason,
            grace_s,
            "; Ctrl-C again leaves at once" if reason == "SIGINT" else "",
        )
        with self._lock:
            self._stopping = True
            self._drop_ready_file()
            self._writer.write(Draining(reason=reason, grace_s=grace_s))

    def fatal(self, code: str, message: str) -> None:
        log.error("%s", message)
        self._write(Fatal(code=code, message=message))

    def exited(self, code: int) -> None:
        """The last words, said once; the ready file is gone before."""
        with self._lock:
            self._drop_ready_file()
            if not self._exited:
                self._exited = True
                self._writer.write(Exited(code=int(code)))

    def _write(self, event: Event) -> None:
        with self._lock:
            self._writer.write(event)

    def _put_ready_file(self, line: bytes) -> None:
        if self._ready_file is not None:
            try:
                self._ready_file.write(line)
            except ConfigError as exc:
                log.error("%s", exc.message)

    def _drop_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.remove()

    def _example(self, listener: Listener) -> str:
        over = f" --unix-socket {listener.socket_path}" if listener.port is None else ""
        key = " -H 'Authorization: Bearer YOUR_KEY'" if self._config.http.needs_key else ""
        return (
            f"curl{over} {listener.url}/v1/chat/completions -H 'Content-Type: application/json'"
            f'{key} -d \'{{"messages": [{{"role": "user", "content": "Say hello."}}]}}\''
        )


def tell_refused(announce: str | None, events_fd: int | None, error: FerrumError) -> None:
    """The events of a command that ends before there is a server; people are told by the caller."""
    try:
        writer = EventWriter(to_stdout=announce == "events", fd=events_fd)
    except ConfigError:  # the descriptor itself is what is wrong
        writer = EventWriter(to_stdout=announce == "events")
    writer.write(Fatal(code=error.code or INTERNAL_ERROR, message=error.message))
    writer.write(Exited(code=ExitCode.USAGE))


def _is_ready_line(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=Ready)
    except msgspec.DecodeError:
        return False
    return True
