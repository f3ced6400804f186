"""A system that lacks something for a moment does not end the server."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from ferrum_local.http.config import HttpConfig
from ferrum_local.server import accepting
from ferrum_local.server.listener import bind
from ferrum_local.server.threaded import ThreadedServer

gthread = pytest.importorskip("ferrum_local.server.gthread", reason="gunicorn is for Unix")

TIMEOUT_S = 30.0


class Refusing:
    """A listening socket whose ``accept`` fails at first."""

    def __init__(self, listener: socket.socket, *numbers: int) -> None:
        self._listener = listener
        self._left = list(numbers)

    def accept(self) -> tuple[socket.socket, Any]:
        if self._left:
            raise OSError(self._left.pop(0), "injected")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_PAUSE_S", 0.01)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_what_the_system_lacks_is_told_and_waited_for(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    accepting.after_failed_accept(OSError(number, "too little of it"))
    assert "New connections wait: too little of it" in caplog.text


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ECONNABORTED, errno.EPROTO])
def test_a_client_that_is_gone_again_is_nothing_to_tell(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    accepting.after_failed_accept(OSError(number, "gone"))
    assert not caplog.records


def test_a_socket_that_does_not_listen_is_a_fault() -> None:
    with pytest.raises(OSError, match="bad"):
        accepting.after_failed_accept(OSError(errno.EBADF, "bad"))


def test_the_threaded_server_goes_on() -> None:
    def app(_environ: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    listener = bind("127.0.0.1", 0)
    sock = Refusing(listener.sockets[0], errno.ENOBUFS, errno.ENOMEM)
    server = ThreadedServer(app, [sock], config=HttpConfig())  # type: ignore[list-item, arg-type]
    server.start()
    with socket.create_connection(("127.0.0.1", listener.port or 0), TIMEOUT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"hello" in client.makefile("rb").read()
    server.stop_accepting()


class Pool:
    """Puts work into its queue, and has no thread for it."""

    def __init__(self) -> None:
        self.queue: list[tuple[Any, ...]] = []

    def submit(self, *work: Any) -> None:
        self.queue.append(work)
        raise RuntimeError("can't start new thread")


class Connection:
    is_refused = has_thread = False
    head_due: float | None = None

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def gthread_server() -> Any:
    """Without its loop."""
    server = object.__new__(gthread.GthreadServer)
    server.tpool, server.nr_conns, server.worker_connections = Pool(), 1, 10
    server._heads, server._head_timeout_s = deque(), 60.0
    return server


def test_gunicorns_loop_goes_on(gthread_server: Any) -> None:
    listener = bind("127.0.0.1", 0)
    refusing = Refusing(listener.sockets[0], errno.ENOBUFS)
    gthread_server.accept(refusing)
    assert gthread_server.nr_conns == 1
    listener.close()


def test_a_connection_for_which_there_is_no_thread_is_closed(gthread_server: Any) -> None:
    connection = Connection()
    gthread_server.enqueue_req(connection)
    assert connection.closed.is_set() and gthread_server.nr_conns == 0
    handle, queued = gthread_server.tpool.queue[0]
    assert handle(queued) is False  # should a thread come to it later
    assert not gthread_server._cut_late_heads()
