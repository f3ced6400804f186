"""A light HTTP client for measuring: plain sockets, and nothing is parsed while the clock runs.

A reply's bytes are kept with the time they came; ``parse_reply`` and ``read_generation`` make
sense of them afterwards. So the load generator takes next to nothing from the servers' cores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bench.stats import decode_rate

DATA = b"data: "
Timed = tuple[float, bytes]  # when it came (perf_counter), and what


class BenchError(Exception):
    """The benchmark cannot go on; the message says why."""


@dataclasses.dataclass(frozen=True)
class Address:
    host: str
    port: int


class Exchange(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._changed = asyncio.Event()
        self.sent_s = 0.0
        self.arrivals: list[Timed] = []
        self.n_events = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.sent_s = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.arrivals.append((time.perf_counter(), data))
        self.n_events += data.count(DATA)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True  # cut short or not: parse_reply sees that
        self._changed.set()

    async def wait_events(self, n_events: int) -> None:
        """Until so many server-sent events came.

        :raises BenchError: when the reply ends before.
        """
        while self.n_events < n_events:
            if self.closed:
                raise BenchError(f"the reply ended after {self.n_events} events: {self._tail()}")
            self._changed.clear()
            await self._changed.wait()

    async def wait_closed(self) -> None:
        """Until the server has sent all and closed the connection."""
        while not self.closed:
            self._changed.clear()
            await self._changed.wait()

    def leave(self) -> None:
        """Close the socket without a word, as a client that went away."""
        if self._transport is not None:
            self._transport.abort()

    def _tail(self) -> str:
        return b"".join(data for _, data in self.arrivals)[-300:].decode("utf-8", "replace")


async def send(address: Address, path: str, body: object | None = None) -> Exchange:
    """Open a connection and send a request: POST with ``body``, else GET."""
    loop = asyncio.get_running_loop()
    request = _request_bytes(address, path, body, keep=False)
    try:
        _, exchange = await loop.create_connection(
            lambda: Exchange(request), address.host, address.port
        )
    except OSError as exc:
        raise BenchError(f"{address.host}:{address.port}: {exc.strerror or exc}") from exc
    return exchange


class Poller:
    """GET requests on one connection that is kept open, to ask a server often and cheaply."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        """:returns: the status and the body."""
        for attempt in (1, 2):  # a kept connection may have been closed meanwhile
            try:
                return await self._get(path)
            except (OSError, asyncio.IncompleteReadError) as exc:
                self.close()
                if attempt == 2:
                    raise BenchError(f"GET {path}: {exc}") from exc
        raise AssertionError("unreachable")

    async def _get(self, path: str) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._address.host, self._address.port)
        reader, writer = self._streams
        writer.write(_request_bytes(self._address, path, None, keep=True))
        head = await reader.readuntil(b"\r\n\r\n")
        status, headers = parse_head(head)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            raw = await reader.readuntil(b"0\r\n\r\n")
            body = b"".join(data for _, data in dechunk([(0.0, raw)]))
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _request_bytes(address: Address, path: str, body: object | None, *, keep: bool) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        f"Host: {address.host}:{address.port}",
        f"Connection: {'keep-alive' if keep else 'close'}",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


# -- replies --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Reply:
    status: int
    body: list[Timed]

    @property
    def content(self) -> bytes:
        return b"".join(data for _, data in self.body)


@dataclasses.dataclass(frozen=True)
class Generation:
    """What one streamed request gave, and when. Times are ``perf_counter`` seconds."""

    sent_s: float
    times_s: tuple[float, ...]  # of every event that brought text
    text: str
    n_prompt: int
    n_cached: int
    n_completion: int

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.sent_s

    @property
    def tokens_per_s(self) -> float:
        return decode_rate(self.times_s, self.n_completion)


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers (names in lower case) of a reply's head."""
    lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(lines[0].split(" ")[1]), headers


def parse_reply(arrivals: Sequence[Timed], *, whole: bool = True) -> Reply:
    """:raises BenchError: when the reply is cut short (in its head only, unless ``whole``)."""
    seen = b""
    for i, (at_s, data) in enumerate(arrivals):
        seen += data
        head, separator, rest = seen.partition(b"\r\n\r\n")
        if separator:
            status, headers = parse_head(head)
            pieces = [(at_s, rest), *arrivals[i + 1 :]]
            if headers.get("transfer-encoding", "").lower() == "chunked":
                return Reply(status, dechunk(pieces, whole=whole))
            return Reply(status, [piece for piece in pieces if piece[1]])
    raise BenchError(f"the reply was cut short in its head: {seen[-200:]!r}")


def dechunk(pieces: Iterable[Timed], *, whole: bool = True) -> list[Timed]:
    """The chunks of a chunked body, each with the time its last byte came.

    :raises BenchError: when ``whole`` and the last chunk (of size 0) is missing.
    """
    chunks: list[Timed] = []
    buffer = b""
    for at_s, data in pieces:
        buffer += data
        while True:
            size_end = buffer.find(b"\r\n")
            if size_end < 0:
                break
            size = int(buffer[:size_end].split(b";")[0], 16)
            if size == 0:
                return chunks
            start = size_end + 2
            if len(buffer) < start + size + 2:
                break
            chunks.append((at_s, buffer[start : start + size]))
            buffer = buffer[start + size + 2 :]
    if whole:
        raise BenchError("the reply was cut short in its body")
    return chunks


def sse_events(pieces: Iterable[Timed]) -> list[tuple[float, str]]:
    """Data of each server-sent event, with the time of the byte that ended it."""
    events: list[tuple[float, str]] = []
    data: list[str] = []
    buffer = b""
    for at_s, piece in pieces:
        buffer += piece
        *lines, buffer = buffer.split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                events.append((at_s, "\n".join(data)))
                data = []
    return events


def read_generation(sent_s: float, arrivals: Sequence[Timed]) -> Generation:
    """Read a streamed chat or text completion.

    :raises BenchError: when the server answered with an error, no text or no usage.
    """
    reply = _good_reply(arrivals)
    pieces: list[tuple[float, str]] = []
    usage: dict[str, Any] | None = None
    n_cached = 0
    for at_s, event in _json_events(reply):
        pieces += [(at_s, text) for text in _texts(event)]
        n_cached = (event.get("timings") or {}).get("cache_n", n_cached)
        usage = event.get("usage") or usage
    if usage is None or not pieces:
        raise BenchError(f"a stream without {'text' if usage else 'usage'}")
    details = usage.get("prompt_tokens_details") or {}
    return Generation(
        sent_s=sent_s,
        times_s=tuple(at_s for at_s, _ in pieces),
        text="".join(text for _, text in pieces),
        n_prompt=usage["prompt_tokens"],
        n_cached=details.get("cached_tokens", n_cached),
        n_completion=usage["completion_tokens"],
    )


def text_times(arrivals: Sequence[Timed]) -> list[float]:
    """When text came, in a stream that may not have ended."""
    reply = _good_reply(arrivals, whole=False)
    return [at_s for at_s, event in _json_events(reply) for _ in _texts(event)]


def _good_reply(arrivals: Sequence[Timed], *, whole: bool = True) -> Reply:
    reply = parse_reply(arrivals, whole=whole)
    if reply.status != 200:
        content = reply.content[:300].decode("utf-8", "replace")
        raise BenchError(f"the server answered {reply.status}: {content}")
    return reply


def _json_events(reply: Reply) -> Iterator[tuple[float, dict[str, Any]]]:
    for at_s, data in sse_events(reply.body):
        if data == "[DONE]":
            return
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise BenchError(f"the stream ended with an error: {data[:300]}")
        yield at_s, event


def _texts(event: dict[str, Any]) -> list[str]:
    """The text in a chunk of a chat or of a text completion; a chunk may have none."""
    choices = event.get("choices", ())
    texts = [(c.get("delta") or {}).get("content") or c.get("text") for c in choices]
    return [text for text in texts if text]
