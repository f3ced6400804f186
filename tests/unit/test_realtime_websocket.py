"""Frames over a socket, with wsproto's own client at the other end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from wsproto.frame_protocol import FrameProtocol, Opcode

from ferrum_local.http.realtime import websocket as module
from ferrum_local.http.realtime.websocket import Oversize, Waker, WebSocket

LIMIT = 1_000_000
PATIENCE_S = 20.0


class Peer:
    """The client's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames = FrameProtocol(client=True, extensions=[])
        sock.settimeout(PATIENCE_S)

    def send(self, data: bytes | bytearray) -> None:
        self.sock.sendall(data)

    def read(self) -> tuple[Opcode, object]:
        """The next whole message or control frame."""
        parts: list[str] = []
        while True:
            for frame in self.frames.received_frames():
                if frame.opcode is not Opcode.TEXT:
                    return frame.opcode, frame.payload
                assert isinstance(frame.payload, str)
                parts.append(frame.payload)
                if frame.message_finished:
                    return Opcode.TEXT, "".join(parts)
            data = self.sock.recv(65536)
            assert data, "the connection ended"
            self.frames.receive_bytes(data)


@contextmanager
def connected() -> Iterator[tuple[WebSocket, Peer]]:
    ours, theirs = socket.socketpair()
    waker = Waker()
    server = WebSocket(ours, waker, max_message_bytes=LIMIT)
    try:
        yield server, Peer(theirs)
    finally:
        server.release()
        waker.close()
        ours.close()
        theirs.close()


def wait(server: WebSocket, until: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline
        server.wait(0.1)


@pytest.mark.parametrize("n_chars", [3_000, 300_000])
def test_rt_10_a_message_in_many_pieces_arrives_whole(n_chars: int) -> None:
    text = "täglich " * (n_chars // 8)
    with connected() as (server, peer):
        data = bytes(peer.frames.send_data(text))
        sender = threading.Thread(
            target=lambda: [peer.send(data[i : i + 1000]) for i in range(0, len(data), 1000)]
        )
        sender.start()
        wait(server, lambda: server.messages)
        sender.join()
        assert list(server.messages) == [text]


def test_rt_10_a_message_in_many_frames_arrives_whole() -> None:
    with connected() as (server, peer):
        pieces = ["ab" * 1000, "c", "", "dé" * 5]
        for i, piece in enumerate(pieces):
            peer.send(peer.frames.send_data(piece, fin=i == len(pieces) - 1))
            peer.send(peer.frames.ping(b"between"))
        wait(server, lambda: server.messages)
        assert server.messages.popleft() == "".join(pieces)
        assert peer.read() == (Opcode.PONG, b"between")


def test_rt_06_too_long_a_message_is_told_and_the_next_is_read() -> None:
    with connected() as (server, peer):
        long = bytes(peer.frames.send_data("x" * (LIMIT + 1)))
        sender = threading.Thread(
            target=lambda: (peer.send(long), peer.send(peer.frames.send_data("short")))
        )
        sender.start()
        wait(server, lambda: len(server.messages) == 2)
        sender.join()
        first, second = server.messages
        assert isinstance(first, Oversize)
        assert second == "short"


def test_rt_06_binary_messages_come_as_bytes_and_broken_text_closes_with_a_code() -> None:
    with connected() as (server, peer):
        peer.send(peer.frames.send_data(b"\x01\x02"))
        wait(server, lambda: server.messages)
        assert server.messages.popleft() == b"\x01\x02"
        frame = bytearray(peer.frames.send_data("ab"))
        mask, body = frame[2:6], b"\xff\xfe"
        frame[6:] = bytes(a ^ b for a, b in zip(body, mask, strict=False))
        peer.send(frame)
        wait(server, lambda: server.wants_close)
        opcode, payload = peer.read()
        assert opcode is Opcode.CLOSE
        assert isinstance(payload, tuple) and payload[0] == 1007


def test_rt_03_a_close_carries_its_code_and_reason() -> None:
    with connected() as (server, peer):
        answered = threading.Thread(target=lambda: peer.send(peer.frames.close(1001)))
        answered.start()
        server.close(1001, "The server is shutting down.")
        answered.join()
        assert peer.read() == (Opcode.CLOSE, (1001, "The server is shutting down."))


def test_rt_02_messages_still_go_out_after_the_client_asked_to_close() -> None:
    with connected() as (server, peer):
        peer.send(peer.frames.close(1000))
        wait(server, lambda: server.wants_close)
        server.send(b'"the last words"')
        server.close(1000)
        assert peer.read() == (Opcode.TEXT, '"the last words"')
        assert peer.read()[0] is Opcode.CLOSE


def test_rt_03_pings_are_sent_and_a_dead_client_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PING_INTERVAL_S", 0.0)
    with connected() as (server, peer):
        server.wait(0.0)
        assert peer.read() == (Opcode.PING, b"")
        monkeypatch.setattr(module, "SILENT_PEER_S", 0.0)
        wait(server, lambda: server.is_gone)


def test_a_client_that_does_not_read_blocks_nobody_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 2_000_000)
    with connected() as (server, _peer):
        for _ in range(200):
            server.send(b"x" * 50_000)
        assert server.is_gone


def test_one_long_message_is_no_reason_to_give_a_client_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1_000_000)
    with connected() as (server, peer):
        server.send(b"x" * 3_000_000)
        assert not server.is_gone
        received: list[object] = []
        reader = threading.Thread(target=lambda: received.append(peer.read()))
        reader.start()
        wait(server, lambda: received)
        reader.join()
        assert received == [(Opcode.TEXT, "x" * 3_000_000)]


def test_another_thread_wakes_who_waits() -> None:
    ours, theirs = socket.socketpair()
    waker = Waker()
    server = WebSocket(ours, waker, max_message_bytes=LIMIT)
    thread = threading.Timer(0.05, waker.wake)
    thread.start()
    started_s = time.monotonic()
    server.wait(PATIENCE_S)
    assert time.monotonic() - started_s < PATIENCE_S
    thread.join()
    server.release()
    waker.close()
    waker.wake()  # after the end: nothing happens
    ours.close()
    theirs.close()
