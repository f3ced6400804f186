"""Seeing that a peer left, without reading what it sent."""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from ferrum_local.http import disconnect
from ferrum_local.http.disconnect import client_gone
from tests.fakes import wait_until


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(server's end, client's end) of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with server, client:
        yield server, client


def test_a_connected_peer_is_not_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, _ = pair
    gone = client_gone({"gunicorn.socket": server})
    assert not gone()
    server.settimeout(60)  # must not make the question wait
    assert not gone()


def test_a_closed_peer_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    gone = client_gone({"werkzeug.socket": server})
    client.close()
    wait_until(gone)


@pytest.mark.parametrize("missing", ["POLLRDHUP", "poll"])
def test_a_closed_peer_is_gone_where_the_system_tells_less(
    missing: str, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disconnect, "POLLRDHUP", 0)
    if missing == "poll":
        monkeypatch.delattr(select, "poll", raising=False)
    server, client = pair
    gone = client_gone({"gunicorn.socket": server})
    assert not gone()
    client.close()
    wait_until(gone)


def test_a_reset_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    gone = client_gone({"gunicorn.socket": server})
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    wait_until(gone)


def test_pipelined_bytes_are_neither_an_end_nor_eaten(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, client = pair
    gone = client_gone({"gunicorn.socket": server})
    client.sendall(b"GET /next")
    assert server.recv(9, socket.MSG_PEEK) == b"GET /next"
    assert not gone()
    assert server.recv(9) == b"GET /next"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a FIN behind bytes")
def test_a_peer_that_left_bytes_behind_is_gone(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, client = pair
    gone = client_gone({"gunicorn.socket": server})
    client.sendall(b"GET /next")
    client.close()
    wait_until(gone)


def test_this_side_closed_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, _ = pair
    gone = client_gone({"gunicorn.socket": server})
    server.close()
    assert gone()


def test_without_a_socket_nobody_is_gone() -> None:
    assert not client_gone({})()
