"""What is said when the server listens, is ready, or cannot start."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from ferrum_local import __version__
from ferrum_local.server.config import ServeConfig
from ferrum_local.server.listener import WILDCARDS, Listener

log = logging.getLogger("ferrum_local.server")


class ReadyLine(msgspec.Struct, frozen=True, kw_only=True):
    """The one line on stdout that programs wait for (``--announce json``)."""

    event: str = "ready"
    url: str
    host: str
    port: int
    pid: int
    version: str
    models: tuple[str, ...]


def say_listening(config: ServeConfig, listener: Listener) -> None:
    where = " and ".join(listener.bound_urls)
    if listener.host in WILDCARDS:
        where += " (all networks of this machine)"
    names = ", ".join(model.id for model in config.models) or "no model"
    log.info("Listening on %s (loading %s)", where, names)
    if listener.note:
        log.info("%s", listener.note)
    if listener.host in WILDCARDS and not config.http.api_keys:
        log.warning(
            "No --api-key: everyone who can reach this machine over a network can use the server"
        )


def say_ready(config: ServeConfig, listener: Listener, models: tuple[str, ...]) -> None:
    """Log it for people and, if asked for, print the line for programs."""
    log.info("Ready: %s serves %s", listener.url, ", ".join(models))
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.http.api_keys else ""
    log.info(
        "Try it: curl %s/v1/chat/completions -H 'Content-Type: application/json'%s "
        '-d \'{"messages": [{"role": "user", "content": "Say hello."}]}\'',
        listener.url,
        key,
    )
    if config.announce == "json":
        line = ReadyLine(
            url=listener.url,
            host=listener.host,
            port=listener.port,
            pid=os.getpid(),
            version=__version__,
            models=models,
        )
        write_stdout(msgspec.json.encode(line) + b"\n")


def say_stopping(config: ServeConfig, received: signal.Signals) -> None:
    log.info(
        "Stopping (%s): requests that still run have %g s to end%s",
        received.name,
        config.drain_timeout_s,
        "; Ctrl-C again leaves at once" if received == signal.SIGINT else "",
    )


def write_stdout(data: bytes) -> None:
    """Write past Python's buffer. A stdout that nobody reads any more is no error.

    Buffered bytes that cannot be written would be tried again at exit, with a complaint.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), data)
    except (OSError, ValueError) as exc:  # EPIPE, EBADF, or closed by the program around us
        log.debug("stdout is closed: %s", exc)
