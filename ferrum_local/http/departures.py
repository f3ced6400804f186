"""Tells at once when a client leaves, without asking each connection again and again.

One thread waits on all watched sockets together; it ends when there were none for a while.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ferrum_local.errors import Unavailable
from ferrum_local.http.disconnect import client_socket, peer_closed
from ferrum_local.http.reading import was_read

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

log = logging.getLogger(__name__)

# Starting a thread for each request of a series would cost more than one that waits.
LINGER_S = 5.0
# These see what is registered while they wait; select() and poll() must be called again.
_SEE_CHANGES = tuple(
    getattr(selectors, name)
    for name in ("EpollSelector", "KqueueSelector")
    if hasattr(selectors, name)
)


class DepartureWatch:
    """Calls back when the peer of a watched connection closes or resets it.

    :param linger_s: about how long its thread stays with nothing to watch.
    """

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self._linger_s = linger_s
        # Reentrant: a request that was never closed may be collected, and so forgotten here,
        # on a thread that holds it.
        self._lock = threading.RLock()
        self._selector: selectors.BaseSelector | None = None
        self._waker: socket.socket | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}  # by file descriptor

    @contextlib.contextmanager
    def watch(self, environ: WSGIEnvironment, on_gone: Callable[[], None]) -> Iterator[None]:
        """Watch the request's connection within the block.

        ``on_gone`` runs at most once, on the watching thread; it must not block. Where the
        server gives no socket nothing is watched, and the caller's own looks must do.

        Within the block the engine works, so the request counts as read.

        :raises Unavailable: there can be no such thread.
        """
        was_read(environ)
        sock = client_socket(environ)
        if sock is None or sock.fileno() < 0:
            yield
            return
        fd = sock.fileno()
        self._add(sock, fd, on_gone)
        try:
            yield
        finally:
            self._remove(fd)

    def _add(self, sock: socket.socket, fd: int, on_gone: Callable[[], None]) -> None:
        with self._lock:
            if self._selector is None:
                self._start()
            assert self._selector is not None
            self._selector.register(sock, selectors.EVENT_READ)
            self._callbacks[fd] = on_gone
            self._wake()

    def _remove(self, fd: int) -> None:
        with self._lock:
            self._callbacks.pop(fd, None)
            self._unregister(fd)
            self._wake()

    def _unregister(self, fd: int) -> None:
        if self._selector is not None and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _start(self) -> None:
        reader, self._waker = socket.socketpair()
        reader.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(reader, selectors.EVENT_READ)
        thread = threading.Thread(
            target=self._run, args=(self._selector, reader), name="departures", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._stop(self._selector, reader)
            raise Unavailable("The system has no thread left.", retry_after_s=5) from error

    def _wake(self) -> None:
        if isinstance(self._selector, _SEE_CHANGES) or self._waker is None:
            return
        # Full means that enough wakes are on their way. Waiting for room with the lock held
        # would keep the reader, who needs the lock, from making any.
        with contextlib.suppress(BlockingIOError):
            self._waker.send(b".")

    def _run(self, selector: selectors.BaseSelector, reader: socket.socket) -> None:
        while True:
            events = selector.select(self._linger_s)
            with self._lock:
                gone = [self._look(key, reader) for key, _ in events]
                if not events and not self._callbacks:
                    self._stop(selector, reader)
                ended = self._selector is not selector
            for on_gone in gone:
                if on_gone is not None:
                    try:
                        on_gone()
                    except Exception:  # one request's trouble must not end the watch of all
                        log.exception("cancelling a request whose client left failed")
            if ended:
                return

    def _look(self, key: selectors.SelectorKey, reader: socket.socket) -> Callable[[], None] | None:
        if key.fileobj is reader:
            with contextlib.suppress(BlockingIOError):
                reader.recv(4096)
            return None
        # Since select() the request may have ended, and its descriptor be another one's.
        if self._selector is None or self._selector.get_map().get(key.fd) is not key:
            return None
        # Readable without being closed is a pipelined request: it would wake us for ever.
        self._unregister(key.fd)
        assert isinstance(key.fileobj, socket.socket)
        return self._callbacks.get(key.fd) if peer_closed(key.fileobj) else None

    def _stop(self, selector: selectors.BaseSelector, reader: socket.socket) -> None:
        assert self._waker is not None
        selector.close()
        reader.close()
        self._waker.close()
        self._selector = self._waker = None
