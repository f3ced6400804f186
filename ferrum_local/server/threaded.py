"""Werkzeug's threaded HTTP/1.1 server, made to sleep when idle and to drain when stopped.

It serves on Windows and inside other programs. Each connection has a thread of its own
and carries one request, as Werkzeug has it.
"""

from __future__ import annotations

import logging
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from ferrum_local.http.config import HttpConfig
from ferrum_local.server.accepting import after_failed_accept

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("ferrum_local.server")

# Connections beyond the streams: short requests, and clients that connect and wait.
RESERVE_CONNECTIONS = 256
_BODY = "ferrum.body"


class ThreadedServer(ThreadedWSGIServer):
    """Serves ``app`` on ``sockets``, which it closes, from a thread of its own.

    :param on_idle: called from any thread each time the last open connection has ended.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        app: WSGIApplication,
        sockets: Sequence[socket.socket],
        *,
        config: HttpConfig,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        name = sockets[0].getsockname()
        is_unix = isinstance(name, str)
        host, port = (f"unix://{name}", 0) if is_unix else name[:2]
        super().__init__(host, port, closed_once(app), _Handler, fd=sockets[0].fileno())
        if is_unix:
            self.server_address = ("localhost", 80)  # WSGI knows names and ports only
        self.socket.close()  # Werkzeug's duplicate; the loop below listens on ours
        self._listeners = list(sockets)
        for listener in self._listeners:
            listener.setblocking(False)
        self._max_connections = config.max_streams + RESERVE_CONNECTIONS
        self.client_timeout_s = config.client_timeout_s
        self._head_timeout_s = config.head_timeout_s
        self._on_idle = on_idle
        self._stopping = False
        self._waker, self._wake_sender = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_loop, name="http-accept", daemon=True)
        self._changed = threading.Condition()
        # When a connection's request must have begun (monotonic); None: it has.
        self._connections: dict[socket.socket, float | None] = {}

    def start(self) -> None:
        self._thread.start()

    def stop_accepting(self) -> None:
        """Close the port; whoever connected before is still served. Twice is fine."""
        if not self._stopping:
            self._stopping = True
            self._wake()
            self._thread.join()
            self._waker.close()
            self._wake_sender.close()

    @property
    def n_connections(self) -> int:
        with self._changed:
            return len(self._connections)

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Until no connection is open. False: the time passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._connections, timeout_s)

    def close_silent(self) -> None:
        """Close the connections on which no request has begun."""
        self._shut_down(lambda head_due: head_due is not None)

    def cut_all(self) -> None:
        """Close every connection, whatever is being sent."""
        self._shut_down(lambda _head_due: True)

    def note_request(self, connection: socket.socket) -> None:
        """A request has begun on ``connection``."""
        with self._changed:
            self._connections[connection] = None

    # Called by socketserver.

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._connections[request] = time.monotonic() + self._head_timeout_s
        try:
            super().process_request(request, client_address)
        except RuntimeError as exc:  # can't start new thread
            log.error("A connection was refused: %s", exc)
            self.shutdown_request(request)
            self._forget(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        exc = sys.exc_info()[1]
        if not isinstance(exc, (ConnectionError, TimeoutError)):
            log.error("A connection failed", exc_info=exc)

    def log(self, type: str, message: str, *args: Any) -> None:
        """Werkzeug reports here what the app let through, as text that may hold a request's."""
        if type == "error":
            log.error("A request failed outside the app", exc_info=True)

    def _accept_loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker, selectors.EVENT_READ)
            listening = False
            while not self._stopping:
                can_accept = self.n_connections < self._max_connections
                if can_accept != listening:
                    for listener in self._listeners:
                        if can_accept:
                            selector.register(listener, selectors.EVENT_READ)
                        else:
                            selector.unregister(listener)
                    listening = can_accept
                for key, _ in selector.select(self._cut_late_heads()):
                    if key.fileobj is self._waker:
                        self._waker.recv(4096)
                    else:
                        self._accept(cast(socket.socket, key.fileobj))
        for listener in self._listeners:
            while self._accept(listener):
                pass  # who connected already is served; closing would reset them
            listener.close()

    def _accept(self, listener: socket.socket) -> bool:
        """Take one waiting connection, if there is one."""
        try:
            connection, address = listener.accept()
        except OSError as exc:
            after_failed_accept(exc)
            return False
        connection.setblocking(True)
        self.process_request(connection, address)
        return True

    def _forget(self, connection: socket.socket) -> None:
        with self._changed:
            was_full = len(self._connections) >= self._max_connections
            self._connections.pop(connection, None)
            is_idle = not self._connections
            self._changed.notify_all()
        if was_full:
            self._wake()
        if is_idle and self._on_idle is not None:
            self._on_idle()

    def _cut_late_heads(self) -> float | None:
        """End connections whose request is overdue; a socket timeout starts anew with every byte.

        :returns: seconds until the next one is due, if there is one.
        """
        now = time.monotonic()
        self._shut_down(lambda head_due: head_due is not None and head_due <= now)
        with self._changed:
            dues = [due for due in self._connections.values() if due is not None and due > now]
        return min(dues) - now if dues else None

    def _shut_down(self, chosen: Callable[[float | None], bool]) -> None:
        with self._changed:
            connections = [c for c, head_due in self._connections.items() if chosen(head_due)]
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError as exc:
                log.debug("Closed already: %s", exc)

    def _wake(self) -> None:
        try:
            self._wake_sender.send(b"\0")
        except OSError as exc:
            log.debug("The accept loop has ended: %s", exc)


class _Body:
    """A reply's body that may be closed twice."""

    def __init__(self, body: Iterable[bytes]) -> None:
        self._body = body
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None and not self._is_closed:
            self._is_closed = True
            close()


def closed_once(app: WSGIApplication) -> WSGIApplication:
    """The same application; the body of its reply is found in the request's ``environ``."""

    def wrapped(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = environ[_BODY] = _Body(app(environ, start_response))
        return body

    return wrapped


class ClosingHandler(WSGIRequestHandler):
    """Closes the body of each reply of an application that is ``closed_once``, come what may."""

    def run_wsgi(self) -> None:
        try:
            super().run_wsgi()
        finally:
            # Werkzeug first reads what the client still sends, and forgets it if that fails.
            body = getattr(self, "environ", {}).pop(_BODY, None)
            if body is not None:
                body.close()


class _Handler(ClosingHandler):
    """One connection. Whatever it has to say goes to our log or back as JSON."""

    protocol_version = "HTTP/1.1"  # chunked replies
    server: ThreadedServer

    def setup(self) -> None:
        self.request.settimeout(self.server.client_timeout_s)
        super().setup()

    def run_wsgi(self) -> None:
        self.server.note_request(self.connection)
        super().run_wsgi()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the app writes the access line."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """The form alone: the arguments are what a client sent."""
        log.debug("HTTP: %s", message)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no HTTP request; such a connection cannot be used further."""
        reason = HTTPStatus(code).phrase
        error = {
            "message": f"Not a valid HTTP request: {message or reason}",
            "type": "invalid_request_error" if code < 500 else "server_error",
            "param": None,
            "code": None,
        }
        body = msgspec.json.encode({"error": error})
        self.close_connection = True
        self.request_version = self.protocol_version  # else it takes garbage for HTTP/0.9
        self.send_response(code, reason)
        self.send_header("Connection", "close")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
