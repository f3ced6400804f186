"""What a server tells the program that started it: one JSON object a line, ``event`` says which."""

from __future__ import annotations

import json
import logging
import os
import select
import sys

import msgspec

from ferrum_local.errors import ConfigError

log = logging.getLogger("ferrum_local.server")


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower, omit_defaults=True
):
    """Base of all events. Fields may be added later; readers ignore those they do not know."""


class Listening(Event, frozen=True):
    """The address is taken and ``/health`` answers soon; nothing is loaded yet."""

    url: str
    host: str
    port: int | None
    pid: int
    version: str
    socket: str | None = None


class Loading(Event, frozen=True):
    """``percent`` of the model is loaded; 100 once it can be used."""

    model: str
    percent: int


class Ready(Event, frozen=True):
    """Requests are served. After a ``restarting`` it comes again.

    ``url`` is what a client on this machine calls; with ``socket`` alone ``port`` is null, and
    the URL is for the HTTP spoken over that socket.
    """

    url: str
    host: str
    port: int | None
    pid: int
    version: str
    models: tuple[str, ...]
    socket: str | None = None


class Restarting(Event, frozen=True):
    """Native code ended the serving process (``reason``: the signal's name); a new one is started,
    the ``attempt``-th of ``limit`` before it is given up."""

    reason: str
    attempt: int
    limit: int


class Draining(Event, frozen=True):
    """No new requests; those that run have ``grace_s`` to end."""

    reason: str
    grace_s: float


class Fatal(Event, frozen=True):
    """The server ends because of this. ``code`` is for programs, ``message`` for people."""

    code: str
    message: str


class Exited(Event, frozen=True):
    """The last event: the process ends with this exit code."""

    code: int


class EventWriter:
    """Writes events to stdout, to an inherited file descriptor, or to both.

    A reader that is gone is no error, and one that stops reading loses events: it must not hold
    the server up.

    :raises ConfigError: ``fd`` is not open for writing.
    """

    def __init__(self, *, to_stdout: bool, fd: int | None = None) -> None:
        self._fds: list[int] = []
        stdout = stdout_fd() if to_stdout else None
        if stdout is not None:
            self._fds.append(stdout)
        if fd is not None:
            _check_writable(fd)
            self._fds.append(fd)

    def write(self, event: Event) -> None:
        line = as_line(event)
        self._fds = [fd for fd in self._fds if write_line(fd, line)]


def as_line(event: Event) -> bytes:
    try:
        return msgspec.json.encode(event) + b"\n"
    except UnicodeEncodeError:  # a file name that is not UTF-8: its bytes as lone surrogates
        return json.dumps(msgspec.to_builtins(event)).encode("ascii") + b"\n"


def stdout_fd() -> int | None:
    """The descriptor behind stdout, with what Python held back written; None: there is none."""
    if sys.stdout is None:
        return None
    try:
        sys.stdout.flush()
        return sys.stdout.fileno()
    except (OSError, ValueError) as exc:  # EPIPE, EBADF, or closed by the program around us
        log.debug("stdout is closed: %s", exc)
        return None


def write_line(fd: int, line: bytes) -> bool:
    """Write past Python's buffer, whose rest would be tried again at exit, with a complaint.

    :returns: False when nobody reads it any more.
    """
    try:
        if _has_room(fd):
            os.write(fd, line)
        else:
            log.warning("Nobody reads the events on descriptor %d: one is left out", fd)
    except OSError as exc:
        log.debug("Events cannot be written to descriptor %d any more: %s", fd, exc)
        return False
    return True


def _has_room(fd: int) -> bool:
    """Whether a line can be written without waiting: a pipe is writable with 4 KiB of room."""
    if not hasattr(select, "poll"):
        return True
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(0))


def _check_writable(fd: int) -> None:
    try:
        if os.name == "posix":
            import fcntl

            is_writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        else:
            os.fstat(fd)
            is_writable = True
    except OSError:
        raise ConfigError(
            f"--events-fd: {fd} is not open; the program that starts the server must hand it down"
        ) from None
    if not is_writable:
        raise ConfigError(f"--events-fd: {fd} is open for reading only")
