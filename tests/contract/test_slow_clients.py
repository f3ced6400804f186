"""Clients that take their time: each is given up, and others are served meanwhile."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from ferrum_local.http.config import HttpConfig
from ferrum_local.server.config import RESERVE_THREADS, Backend, ServeConfig
from ferrum_local.types import ModelSpec
from tests.contract.live import CHAT, scrape, value
from tests.fakes import wait_until
from tests.prompted_engine import FACTORY
from tests.server_process import CLIENT_TIMEOUT_S, ServerProcess, fetch

POSIX_ONLY = pytest.mark.skipif(os.name != "posix", reason="gunicorn needs POSIX")
N_SOCKETS = 50
N_STREAMS = 4
FLOOD_BYTES = 16_000_000  # more than the buffers between two sockets hold


@pytest.fixture(scope="module", params=[pytest.param("gunicorn", marks=POSIX_ONLY), "werkzeug"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with fewer threads than the clients here, and little patience."""
    assert N_STREAMS + RESERVE_THREADS < N_SOCKETS
    config = ServeConfig(
        models=(ModelSpec(id="tiny", path="ok"),),
        port=0,
        announce="json",
        http=HttpConfig(
            max_streams=N_STREAMS, head_timeout_s=0.4, body_timeout_s=0.4, client_timeout_s=0.4
        ),
    )
    backend: Backend = request.param
    log = tmp_path_factory.mktemp("slow") / "log"
    server = ServerProcess(config, log, engine_factory=FACTORY, backend=backend)
    try:
        yield int(server.read_ready()["port"])
        assert "Traceback" not in server.log
    finally:
        server.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=CLIENT_TIMEOUT_S)


def trickle(clients: list[socket.socket], stop: threading.Event) -> None:
    """A byte of each now and then; none of them is ever silent for long."""
    while not stop.wait(0.05):
        for client in clients:
            with contextlib.suppress(OSError):  # given up already
                client.send(b"x")


@contextlib.contextmanager
def trickling(port: int, head: bytes) -> Iterator[list[socket.socket]]:
    """Clients that sent ``head`` and then go on byte by byte."""
    clients = [connect(port) for _ in range(N_SOCKETS)]
    for client in clients:
        client.sendall(head)
    stop = threading.Event()
    thread = threading.Thread(target=trickle, args=(clients, stop))
    thread.start()
    try:
        yield clients
    finally:
        stop.set()
        thread.join()
        for client in clients:
            client.close()


def wait_given_up(clients: list[socket.socket]) -> list[bytes]:
    """What each was told before its connection ended."""
    told = []
    for client in clients:
        said = b""
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(65536):
                said += piece
        told.append(said)
    return told


def wait_nothing_in_flight(port: int) -> None:
    def is_idle() -> bool:
        series = scrape(f"http://127.0.0.1:{port}")
        return value(series, "ferrum_http_requests_in_flight") == 0

    wait_until(is_idle, CLIENT_TIMEOUT_S)


def test_sec_06_half_a_head_that_grows_byte_by_byte_is_given_up(port: int) -> None:
    with trickling(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ") as clients:
        assert fetch(port, "/health")[0] == 200
        wait_given_up(clients)
        assert fetch(port, "/health")[0] == 200


def test_sec_06_half_a_head_and_then_nothing_is_given_up(port: int) -> None:
    clients = [connect(port) for _ in range(N_SOCKETS)]
    for client in clients:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: lo")
    assert fetch(port, "/health")[0] == 200
    wait_given_up(clients)
    for client in clients:
        client.close()


def test_sec_06_a_body_that_trickles_in_is_given_up_by_each_of_many(port: int) -> None:
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 100000\r\n\r\n{"
    )
    with trickling(port, head.encode()) as clients:
        assert fetch(port, "/health")[0] == 200
        told = wait_given_up(clients)
    wait_nothing_in_flight(port)
    answered = [said for said in told if said]
    assert all(said.startswith(b"HTTP/1.1 408 ") for said in answered), told
    assert len(answered) > N_SOCKETS // 2  # a reply can be lost with the connection


def test_sec_06_a_client_that_does_not_read_loses_its_stream(port: int) -> None:
    body = b'{"stream": true, "messages": [{"role": "user", "content": "flood %d"}]}' % FLOOD_BYTES
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    clients = [connect(port) for _ in range(N_STREAMS)]  # every place for a stream
    for client in clients:
        client.sendall(head.encode() + body)
    for client in clients:
        select.select([client], [], [], CLIENT_TIMEOUT_S)  # its answer has begun
    assert fetch(port, "/health")[0] == 200

    wait_nothing_in_flight(port)
    for client in clients:
        client.close()


def test_a_client_that_reads_slowly_but_does_read_gets_it_all(port: int) -> None:
    """The limit is for each piece, and a head may come in two."""
    with connect(port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        client.sendall(b"alhost\r\nConnection: close\r\n\r\n")
        reply = b"".join(iter(lambda: client.recv(1), b""))
    assert reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(b"}")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1\r\n" + "X-A: b\r\n" * 200, (400, 431)),
        ("GET /health HTTP/1.1\r\nX-A: " + "b" * 100_000 + "\r\n", (400, 431)),
        ("GET /health?" + "a" * 100_000 + " HTTP/1.1\r\n", (414,)),
    ],
)
def test_a_head_has_bounds_of_count_and_size(port: int, head: str, status: tuple[int, ...]) -> None:
    with connect(port) as client:
        client.sendall(head.encode() + b"Host: localhost\r\n\r\n")
        reply = client.recv(65536)
    assert int(reply.split()[1]) in status
    assert fetch(port, "/health")[0] == 200
