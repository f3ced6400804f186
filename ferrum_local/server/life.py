"""Chooses the backend and runs it: the port is taken first, everything else comes after."""

from __future__ import annotations

import logging
import os
import sys

import msgspec

from ferrum_local.errors import FerrumError
from ferrum_local.server import listener as listening
from ferrum_local.server.announce import say_listening
from ferrum_local.server.config import Backend, ServeConfig, with_bound_host
from ferrum_local.server.logs import configure_logging

log = logging.getLogger("ferrum_local.server")


def run(config: ServeConfig, *, backend: Backend, engine_factory: str) -> int:
    """See :func:`ferrum_local.server.serve`."""
    _occupy_standard_fds()
    configure_logging(config.log_format, config.log_level)
    try:
        listener = listening.bind(config.host, config.port)
    except FerrumError as exc:
        log.error("%s", exc.message)
        return 1
    config = msgspec.structs.replace(config, http=with_bound_host(config.http, config.host))
    say_listening(config, listener)
    try:
        if _choose(backend) == "gunicorn":
            from ferrum_local.server.supervisor import Supervisor

            return Supervisor(config, listener, engine_factory=engine_factory).run()
        from ferrum_local.server.in_process import run_in_process

        return run_in_process(config, listener, engine_factory=engine_factory)
    finally:
        listener.close()


def _choose(backend: Backend) -> Backend:
    if backend != "auto":
        return backend
    # The supervisor starts a second Python; a frozen program has none to start.
    can_spawn = os.name == "posix" and bool(sys.executable) and not hasattr(sys, "frozen")
    return "gunicorn" if can_spawn else "werkzeug"


def _occupy_standard_fds() -> None:
    """Started with stdin, stdout or stderr closed, the port would get their number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
