"""Connections that were answered for the last time and wait for their client to close.

Closed at once, with something of the client's still unread, a connection would be reset and the
client could lose the reply. So our half is closed and what comes is thrown away for a while
(RFC 9112, section 9.6), by the poller: waiting for one client would hold up all others.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from functools import partial

LINGER_S = 2.0
MAX_CONNECTIONS = 64  # each holds a file descriptor; beyond that they are closed at once
MAX_DRAINED_BYTES = 65_536
_READ_BYTES = 4096


class _Connection:
    def __init__(self, sock: socket.socket, until: float) -> None:
        self.sock = sock
        self.until = until
        self.n_drained = 0


class Lingering:
    """Such connections of one event loop, to be used from its thread alone.

    :param poller: calls ``key.data`` with the socket when it can be read.
    """

    def __init__(self, poller: selectors.BaseSelector) -> None:
        self._poller = poller
        self._connections: deque[_Connection] = deque()  # the first to expire first

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def next_end(self) -> float | None:
        """Monotonic; None: there are none."""
        return self._connections[0].until if self._connections else None

    def add(self, sock: socket.socket) -> None:
        """Take over ``sock``, which nobody else uses any more."""
        try:
            if len(self) >= MAX_CONNECTIONS:
                raise OSError("enough linger already")
            sock.setblocking(False)
            sock.shutdown(socket.SHUT_WR)
            connection = _Connection(sock, time.monotonic() + LINGER_S)
            self._poller.register(
                sock, selectors.EVENT_READ, partial(self._on_readable, connection)
            )
        except (OSError, ValueError):  # reset by the client, as a rule
            sock.close()
            return
        self._connections.append(connection)

    def close_expired(self) -> None:
        now = time.monotonic()
        while self._connections and self._connections[0].until <= now:
            self._close(self._connections.popleft())

    def _on_readable(self, connection: _Connection, _sock: socket.socket) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        connection.n_drained += len(data)
        if not data or connection.n_drained >= MAX_DRAINED_BYTES:
            self._connections.remove(connection)
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._poller.unregister(connection.sock)
        connection.sock.close()
