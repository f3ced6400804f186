"""The server's end of one WebSocket, on the thread that serves it.

wsproto cuts and joins frames. Its own state machine sends nothing once the peer asked to close;
here the last transcript is still sent then, so closing is up to the caller.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from typing import Final

from wsproto.frame_protocol import FrameProtocol, Opcode, ParseFailed

from ferrum_local.http.disconnect import peer_closed

log = logging.getLogger(__name__)

RECV_BYTES: Final = 64 * 1024
MAX_UNSENT_BYTES: Final = 32 * 1024 * 1024
PING_INTERVAL_S: Final = 20.0
SILENT_PEER_S: Final = 65.0  # without as much as an answer to a ping
CLOSE_TIMEOUT_S: Final = 2.0


class Oversize:
    """Stands for a message that was longer than allowed, and of which nothing was kept."""


Message = str | bytes | Oversize


class Waker:
    """Has a ``WebSocket`` that waits return; safe from any thread, and after the end."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody waits
            self._writer.send(b".")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.reader.recv(4096)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


class WebSocket:
    """Frames over ``sock``, whose handshake was done. One thread uses it.

    Nothing blocks but ``wait``: what the peer has no room for is kept, and sent while waiting.

    :param max_message_bytes: longer messages become an :class:`Oversize`.
    """

    def __init__(self, sock: socket.socket, waker: Waker, *, max_message_bytes: int) -> None:
        self._sock = sock
        self._waker = waker
        self._max_message_bytes = max_message_bytes
        self._frames = FrameProtocol(client=False, extensions=[])
        self._unsent = bytearray()
        self._parts: list[str | bytes] = []
        self._n_part_bytes = 0
        self._heard_s = self._pinged_s = time.monotonic()
        self.messages: deque[Message] = deque()
        self.wants_close = False  # the peer sent its close frame
        self.close_sent = False
        self.is_gone = False  # nothing can be sent or will come any more
        sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(waker.reader, selectors.EVENT_READ)

    @property
    def n_unsent_bytes(self) -> int:
        return len(self._unsent)

    @property
    def peer_left(self) -> bool:
        """Whether the connection ended; asks without reading, for who cannot ``wait`` now."""
        return self.is_gone or peer_closed(self._sock)

    def wait(self, timeout_s: float) -> None:
        """Until something came, the waker was used, or the time passed; sends what it can."""
        if self.is_gone:
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._sock, wanted)
        for key, events in self._selector.select(max(0.0, timeout_s)):
            if key.fileobj is self._waker.reader:
                self._waker.drain()
            else:
                if events & selectors.EVENT_WRITE:
                    self._flush()
                if events & selectors.EVENT_READ:
                    self._receive()
        self._keep_alive()

    def send(self, text: bytes) -> None:
        """:param text: UTF-8."""
        if not (self.is_gone or self.close_sent):
            self._put(self._frames.send_data(text.decode(), fin=True))

    def close(self, code: int, reason: str = "") -> None:
        """Send the close frame, and give the peer a moment to answer with its own."""
        self.start_close(code, reason)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while not self.is_gone and (self._unsent or not self.wants_close):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self.wait(left_s)
            self.messages.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self.is_gone = True

    def start_close(self, code: int, reason: str) -> None:
        if not (self.is_gone or self.close_sent):
            self._put(self._frames.close(code, reason))  # cut to what a close frame holds
            self.close_sent = True

    def release(self) -> None:
        """Give the socket back to the server as it was."""
        self._selector.close()
        with contextlib.suppress(OSError):
            self._sock.setblocking(True)

    def _put(self, frame: bytes | bytearray) -> None:
        self._flush()
        if len(self._unsent) > MAX_UNSENT_BYTES:  # before this frame, which may be long itself
            log.info("A client does not read its events and is disconnected")
            self.is_gone = True
            return
        self._unsent += frame
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                n_sent = self._sock.send(memoryview(self._unsent)[:RECV_BYTES])
                del self._unsent[:n_sent]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.is_gone = True

    def _receive(self) -> None:
        try:
            data = self._sock.recv(RECV_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.is_gone = True
            return
        self._heard_s = time.monotonic()
        if self.wants_close:
            return  # nothing may follow a close frame
        self._frames.receive_bytes(data)
        try:
            for frame in self._frames.received_frames():
                self._take(frame.opcode, frame.payload, frame.message_finished)
        except ParseFailed as error:
            self.wants_close = True
            self.start_close(error.code, str(error))

    def _take(self, opcode: Opcode, payload: object, is_whole: bool) -> None:
        if opcode is Opcode.PING:
            if not self.close_sent:
                assert isinstance(payload, (bytes, bytearray))
                self._put(self._frames.pong(bytes(payload)))
        elif opcode is Opcode.CLOSE:
            self.wants_close = True
        elif opcode in (Opcode.TEXT, Opcode.BINARY):
            assert isinstance(payload, (str, bytes, bytearray))
            self._add(payload if isinstance(payload, str) else bytes(payload), is_whole)

    def _add(self, part: str | bytes, is_whole: bool) -> None:
        """A frame may come in pieces, and a message in frames."""
        self._n_part_bytes += len(part)
        if self._n_part_bytes > self._max_message_bytes:
            self._parts.clear()
        else:
            self._parts.append(part)
        if not is_whole:
            return
        if self._n_part_bytes > self._max_message_bytes:
            self.messages.append(Oversize())
        elif isinstance(part, str):
            self.messages.append("".join(p for p in self._parts if isinstance(p, str)))
        else:
            self.messages.append(b"".join(p for p in self._parts if isinstance(p, bytes)))
        self._parts = []
        self._n_part_bytes = 0

    def _keep_alive(self) -> None:
        """Pings keep proxies and routers from forgetting the connection, and find dead peers."""
        now_s = time.monotonic()
        if now_s - self._heard_s > SILENT_PEER_S:
            self.is_gone = True
        elif now_s - self._pinged_s >= PING_INTERVAL_S and not self.close_sent:
            self._pinged_s = now_s
            self._put(self._frames.ping(b""))
