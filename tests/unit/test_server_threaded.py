"""The threaded server's own promises, with a plain WSGI application."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ferrum_local.http.config import HttpConfig
from ferrum_local.server.listener import bind
from ferrum_local.server.threaded import ThreadedServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

PATIENCE_S = 30.0


class Body:
    """A reply that knows how often it was closed."""

    def __init__(self) -> None:
        self.n_closed = 0
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield b"all of it"

    def close(self) -> None:
        self.n_closed += 1
        self.closed.set()


def test_sec_06_a_reply_is_closed_once_whatever_its_client_still_sends() -> None:
    """Werkzeug reads what is left of the request first; when that fails, it forgets the reply."""
    body = Body()
    gave_up, more_came = threading.Event(), threading.Event()

    def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        with suppress(TimeoutError):
            environ["wsgi.input"].read(100)  # Python reads from such a stream no more
        gave_up.set()
        assert more_came.wait(PATIENCE_S)
        start_response("408 Request Timeout", [("Content-Type", "text/plain")])
        return body

    listener = bind("127.0.0.1", 0)
    server = ThreadedServer(app, listener.sockets, config=HttpConfig(client_timeout_s=0.05))
    server.start()
    with socket.create_connection(("127.0.0.1", listener.port or 0), PATIENCE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        assert gave_up.wait(PATIENCE_S)
        client.sendall(b"more")
        more_came.set()
        assert body.closed.wait(PATIENCE_S)
        assert server.wait_idle(PATIENCE_S)
    assert body.n_closed == 1
    server.stop_accepting()
