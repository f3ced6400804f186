"""A small asyncio HTTP/1.1 client that can also leave early, or send what no client should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

HOST = "127.0.0.1"
TIMEOUT_S = 180.0  # for one reply; a busy two-core machine answers a full queue in a minute


class Broken(Exception):
    """The connection ended, or the reply was not HTTP; the message says how."""


class Reply(NamedTuple):
    """``body`` is what came; all of it unless the client left."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


def encode_request(
    method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """``body`` is sent as JSON; bytes as they are."""
    content = body if isinstance(body, bytes) else b"" if body is None else _json(body)
    fields = {"Host": HOST, "Connection": "close", **(headers or {})}
    if body is not None:
        fields.setdefault("Content-Type", "application/json")
        fields.setdefault("Content-Length", str(len(content)))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content


def _json(body: object) -> bytes:
    return json.dumps(body).encode()


async def call(
    port: int,
    method: str,
    path: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    leave_after_events: int | None = None,
) -> Reply:
    """Send a request and read the reply; see ``exchange``."""
    request = encode_request(method, path, body, headers)
    return await exchange(port, request, leave_after_events=leave_after_events)


async def exchange(port: int, request: bytes, *, leave_after_events: int | None = None) -> Reply:
    """Send a whole request as bytes and read the reply.

    :param leave_after_events: reset the connection after so many server-sent events.
    :raises Broken: when the reply is not whole, or takes too long.
    """
    what = request.partition(b" HTTP")[0].decode("latin-1")
    try:
        return await asyncio.wait_for(_exchange(port, request, leave_after_events), TIMEOUT_S)
    except asyncio.TimeoutError:
        raise Broken(f"{what}: no whole reply in {TIMEOUT_S:g} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as exc:
        raise Broken(f"{what}: {type(exc).__name__} {exc}") from exc


async def _exchange(port: int, request: bytes, leave_after_events: int | None) -> Reply:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        await writer.drain()
        status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        body = b""
        async for piece in _body(reader, headers):
            body += piece
            if leave_after_events is not None and body.count(b"data: ") >= leave_after_events:
                break
        return Reply(status, headers, body)
    finally:
        writer.transport.abort()


async def send_and_leave(port: int, request: bytes, after_s: float) -> bytes:
    """Send bytes, wait a moment for a reply, and reset the connection; returns its beginning."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError as exc:
        raise Broken(f"cannot connect: {exc}") from exc
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(1 << 16), after_s)
    except (asyncio.TimeoutError, ConnectionError):
        return b""
    finally:
        writer.transport.abort()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP: {first[:80]!r}")
    fields = (line.partition(":") for line in lines if line)
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        yield await reader.read(-1)
