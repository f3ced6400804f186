"""gunicorn's threaded worker, changed where a local server of long streams differs.

- No heartbeat and no look at the parent every second: an idle server sleeps.
- A connection takes a thread only once it has sent something, and a client that stalls
  half-way through a request or a reply loses it: idle sockets cannot use the threads up.
- Stopping drains: the port is closed, open requests end or are ended, then it returns.
- Requests that are no HTTP get their 400 as JSON.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from gunicorn import util
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http import errors as http_errors
from gunicorn.workers.gthread import TConn, ThreadWorker

from ferrum_local.http.reading import READING_TURNS, ReadingTurns
from ferrum_local.server.accepting import after_failed_accept
from ferrum_local.server.config import LAST_WORDS_S, LINGER_S, RESERVE_THREADS
from ferrum_local.server.engine_life import EngineLife
from ferrum_local.server.lingering import Lingering
from ferrum_local.server.protocol import StopOrder, decode_down

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("ferrum_local.server")

# Kept connections cost a file descriptor each, no thread. Longer than clients keep theirs,
# so that it is rarely us who closes just as a request comes.
HTTP_KEEP_ALIVE_S = 75
SILENT_TIMEOUT_S = 20.0  # for a connection's first byte
MAX_CONNECTIONS = 1000
ACCEPTED_AT_ONCE = 4  # before those that wait have their turn
SPARE_FDS = 128  # model files, pipes, libraries
_OUR_FAULTS = (http_errors.InvalidResponseHeader, http_errors.InvalidResponseHeaderName)


class GthreadServer(ThreadWorker):  # type: ignore[misc]
    """Serves ``app`` on ``sockets`` in this thread and a pool until SIGTERM."""

    def __init__(
        self,
        app: WSGIApplication,
        life: EngineLife,
        sockets: Sequence[socket.socket],
        *,
        max_streams: int,
        head_timeout_s: float,
        client_timeout_s: float,
        drain_timeout_s: float,
        supervisor_fd: int,
    ) -> None:
        """:param head_timeout_s: for a request's head, which holds a thread until it is complete.
        :param client_timeout_s: for the next bytes of a body, or for room to send a reply.
        """
        cfg = _gunicorn_config(n_threads=max_streams + RESERVE_THREADS)
        super().__init__(
            age=1,
            ppid=os.getppid(),
            sockets=list(sockets),
            app=None,
            timeout=0,
            cfg=cfg,
            log=_GunicornLog(cfg),
        )
        self._app = app
        self._life = life
        self._head_timeout_s = head_timeout_s
        self._client_timeout_s = client_timeout_s
        self._heads: deque[tuple[float, _Connection]] = deque()  # by the moment they are due
        self._turns = ReadingTurns()
        self._drain_timeout_s = drain_timeout_s
        self._supervisor_fd = supervisor_fd

    def wake(self) -> None:
        """Make the main loop look around; safe from any thread and from signal handlers."""
        self.method_queue.defer(_nothing)

    # What gunicorn's ``init_process`` calls, in this order: load_wsgi after init_signals.

    def init_signals(self) -> None:
        signal.signal(signal.SIGTERM, self.handle_exit)

    def load_wsgi(self) -> None:
        self.wsgi = self._read_in_turn

    def _read_in_turn(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        environ[READING_TURNS] = self._turns
        return self._app(environ, start_response)

    def run(self) -> None:
        self._lingering = Lingering(self.poller)
        self.poller.register(
            self.method_queue.fileno(), selectors.EVENT_READ, self.method_queue.run_callbacks
        )
        self.poller.register(self._supervisor_fd, selectors.EVENT_READ, self._hear_supervisor)
        self.set_accept_enabled(True)
        self._life.start_loading()
        while self.alive:
            self.set_accept_enabled(self.nr_conns < self.worker_connections)
            self._serve_events(until=None)
        self._drain()

    def accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if self.nr_conns >= self.worker_connections or not self._accept_one(listener):
                return

    def _accept_one(self, listener: socket.socket) -> bool:
        """:returns: whether there may be more."""
        try:
            client, address = listener.accept()
        except OSError as exc:
            after_failed_accept(exc)
            return False
        self.nr_conns += 1
        conn = _Connection(self.cfg, client, address, listener.getsockname())
        conn.head_timeout_s = self._head_timeout_s
        conn.linger = self._lingering.add
        if _is_readable(client):  # as a rule: clients connect when they have something to say
            conn.data_ready = True
            self.enqueue_req(conn)
            return True
        conn.timeout = time.monotonic() + SILENT_TIMEOUT_S
        self.pending_conns.append(conn)
        self.poller.register(
            client, selectors.EVENT_READ, partial(self.on_pending_socket_readable, conn)
        )
        return True

    def enqueue_req(self, conn: _Connection) -> None:
        """Give ``conn`` a thread; the main thread sees to it that a head comes in time.

        A socket timeout would not do: it starts anew with every byte that trickles in.
        """
        conn.has_thread = False
        self._expect_head(conn)
        try:
            super().enqueue_req(conn)
        except RuntimeError as exc:  # can't start new thread
            log.error("A connection was refused: %s", exc)
            conn.is_refused = True
            conn.head_due = None
            self.nr_conns -= 1
            conn.close()

    def handle(self, conn: _Connection) -> object:
        if conn.is_refused:  # the pool had put it into its queue before it failed
            return False
        self._turns.begin()
        conn.has_thread = True
        try:
            return super().handle(conn)
        finally:
            self._turns.end()

    def finish_request(self, conn: _Connection, fs: Any) -> None:
        conn.head_due = None
        super().finish_request(conn, fs)

    def handle_request(self, req: object, conn: _Connection) -> bool:
        conn.head_due = None
        conn.sock.settimeout(self._client_timeout_s)
        keep: bool = super().handle_request(req, conn)
        return keep

    def handle_error(self, req: object, client: socket.socket, addr: Any, exc: Exception) -> None:
        """Answer what never became a request for the app, or what the app let through."""
        if isinstance(exc, http_errors.ParseException) and not isinstance(exc, _OUR_FAULTS):
            status, reason = _parse_error_status(exc)
            # Its text has what was sent, which may be the rest of a body of another length.
            log.info("Not a valid HTTP request (%s)", type(exc).__name__)
            message, kind = f"Not a valid HTTP request: {exc}", "invalid_request_error"
        else:
            status, reason = 500, "Internal Server Error"
            log.error("A request failed outside the app", exc_info=exc)
            message, kind = "The server hit an internal error.", "server_error"
        error = {"message": message, "type": kind, "param": None, "code": None}
        body = msgspec.json.encode({"error": error})
        head = (
            f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            util.write_nonblock(client, head.encode("ascii") + body)
        except OSError as write_error:
            log.debug("Could not send an error: %s", write_error)

    def _serve_events(self, *, until: float | None) -> None:
        """Sleep until there is something to do, a connection expires, or it is ``until``."""
        moments = [
            conns[0].timeout for conns in (self.keepalived_conns, self.pending_conns) if conns
        ]
        if self._cut_late_heads():
            moments.append(self._heads[0][0])
        if self._lingering.next_end is not None:
            moments.append(self._lingering.next_end)
        if until is not None:
            moments.append(until)
        timeout_s = max(0.0, min(moments) - time.monotonic()) if moments else None
        self.wait_for_and_dispatch_events(timeout_s)
        self.murder_keepalived()
        self.murder_pending()
        self._lingering.close_expired()

    def _expect_head(self, conn: _Connection) -> None:
        conn.head_due = time.monotonic() + self._head_timeout_s
        self._heads.append((conn.head_due, conn))

    def _cut_late_heads(self) -> bool:
        """End connections whose request is overdue. :returns: whether any is still to come."""
        now = time.monotonic()
        while self._heads:
            due, conn = self._heads[0]
            if conn.head_due == due:
                if due > now:
                    return True
                if conn.has_thread:
                    log.info("A request came too slowly and was given up")
                    with contextlib.suppress(OSError):  # gone already
                        conn.sock.shutdown(socket.SHUT_RD)
                else:  # it is us who are slow: nothing of it could be read yet
                    self._expect_head(conn)
            self._heads.popleft()
        return False

    def _hear_supervisor(self, fd: int) -> None:
        """An order comes once at most; after that, or without one, the end of the pipe."""
        line = os.read(fd, 65536)
        self.alive = False
        if line:
            order = decode_down(line, StopOrder)
            self._drain_timeout_s = min(self._drain_timeout_s, order.grace_s)
        else:
            self.poller.unregister(fd)
            log.warning("The supervisor is gone: stopping")

    def _drain(self) -> None:
        """Close the port, let open requests end, have the engine end the rest."""
        if select.select([self._supervisor_fd], [], [], 0)[0]:
            self._hear_supervisor(self._supervisor_fd)  # its order came before its SIGTERM
        self.set_accept_enabled(False)
        for listener in self.sockets:
            self._accept_waiting(listener)
            listener.close()
        self._life.start_draining(grace_s=self._drain_timeout_s)
        now = time.monotonic()
        self._cap_keepalive(now + LINGER_S)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, now + LINGER_S)
        deadline = now + self._drain_timeout_s + LAST_WORDS_S
        while self.nr_conns > 0 or len(self._lingering) > 0 or not self._life.is_closed:
            if time.monotonic() >= deadline:
                log.warning("%d connections did not end in time and are cut", self.nr_conns)
                break
            self._serve_events(until=deadline)

    def _accept_waiting(self, listener: socket.socket) -> None:
        """Take those who connected already: closing the port would reset them."""
        before = -1
        while before != self.nr_conns:
            before = self.nr_conns
            self.accept(listener)


class _Connection(TConn):  # type: ignore[misc]
    """A connection whose client may not stall for ever; a stall ends it like a disconnect."""

    head_timeout_s: float
    linger: Callable[[socket.socket], None]
    head_due: float | None = None  # monotonic; None: no head is being read
    has_thread = False
    is_refused = False

    def init(self) -> None:
        super().init()
        self.sock.settimeout(self.head_timeout_s)

    def close(self, graceful: bool = False) -> None:
        """On the main thread: gunicorn's own graceful close would wait for the client there."""
        if graceful:
            self.linger(self.sock)
        else:
            super().close()


class _GunicornLog(Logger):  # type: ignore[misc]
    """gunicorn's messages, through our logging; its access log stays off, the app writes one."""

    def setup(self, cfg: Config) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        for logger in (self.error_log, self.access_log):
            logger.propagate = True

    def exception(self, msg: str, *args: object, **kwargs: Any) -> None:
        if isinstance(sys.exc_info()[1], TimeoutError):
            log.info("A client stalled and was disconnected")
        else:
            super().exception(msg, *args, **kwargs)


def _gunicorn_config(*, n_threads: int) -> Config:
    cfg = Config()
    settings: dict[str, object] = {
        "workers": 1,
        "threads": n_threads,
        "worker_connections": max(n_threads + 1, min(MAX_CONNECTIONS, _fd_limit() - SPARE_FDS)),
        "keepalive": HTTP_KEEP_ALIVE_S,
        "limit_request_line": 8190,
        "sendfile": False,
        "control_socket_disable": True,
        "http_parser": "python",
        # Never written to, but gunicorn makes the file; memory rather than a disk.
        "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
    }
    for name, value in settings.items():
        cfg.set(name, value)
    return cfg


def _fd_limit() -> int:
    """How many files this process may open, after asking for as many as it needs."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_FDS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (OSError, ValueError) as exc:  # macOS has a second, undocumented bound
            log.debug("Could not raise the limit of open files: %s", exc)
    return wanted if soft == resource.RLIM_INFINITY else soft


def _parse_error_status(exc: Exception) -> tuple[int, str]:
    if isinstance(exc, http_errors.LimitRequestLine):
        return 414, "URI Too Long"
    if isinstance(exc, http_errors.LimitRequestHeaders):
        return 431, "Request Header Fields Too Large"
    if isinstance(exc, http_errors.ExpectationFailed):
        return 417, "Expectation Failed"
    return 400, "Bad Request"


def _is_readable(sock: socket.socket) -> bool:
    """Whether something came over the non-blocking ``sock``, be it its end."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True  # reset: reading will tell
    return True


def _nothing() -> None:
    """A callback whose only use is that the loop wakes for it."""
