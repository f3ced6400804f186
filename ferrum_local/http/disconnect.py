"""Notices that a client left without writing to it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

SOCKET_KEYS = ("gunicorn.socket", "werkzeug.socket")
# Linux tells of a closed peer even while unread bytes are queued before its FIN.
POLLRDHUP = getattr(select, "POLLRDHUP", 0)
DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)


def client_gone(environ: WSGIEnvironment) -> Callable[[], bool]:
    """A question that can be asked at any time: did the peer close or reset its connection?

    Consumes nothing: bytes of a next, pipelined request stay where they are. False when it
    cannot be known (no socket in ``environ``). A client that only shuts down its sending side
    counts as gone; such clients cannot be told from closed ones without writing.
    """
    sock = client_socket(environ)
    if sock is None:
        return lambda: False
    return lambda: peer_closed(sock)


def client_socket(environ: WSGIEnvironment) -> socket.socket | None:
    """The connection that a request came over, where the server tells."""
    sock = next((environ[key] for key in SOCKET_KEYS if key in environ), None)
    return sock if isinstance(sock, socket.socket) else None


def peer_closed(sock: socket.socket) -> bool:
    """Whether the other side closed or reset the connection; asks without consuming."""
    try:
        readable, hung_up = _poll(sock)
        if hung_up:
            return True
        if not readable:
            return False
        # Asked only after poll said so: a socket with a timeout would wait in recv.
        return sock.recv(1, socket.MSG_PEEK | DONT_WAIT) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except (OSError, ValueError):  # reset, or already closed on this side
        return True


def _poll(sock: socket.socket) -> tuple[bool, bool]:
    """(something can be read, the peer is known to be gone), without waiting."""
    if not hasattr(select, "poll"):
        readable, _, _ = select.select([sock], [], [], 0)
        return bool(readable), False
    poller = select.poll()
    poller.register(sock, select.POLLIN | POLLRDHUP)
    flags = 0
    for _, happened in poller.poll(0):
        flags |= happened
    hung_up = flags & (select.POLLHUP | select.POLLERR | select.POLLNVAL | POLLRDHUP)
    return bool(flags & select.POLLIN), bool(hung_up)
