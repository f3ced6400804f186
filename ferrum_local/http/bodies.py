"""Request bodies in, JSON replies out: every limit on a body is checked here."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import msgspec
from flask import Flask, Response, current_app, request
from werkzeug.exceptions import RequestEntityTooLarge

from ferrum_local.http.disconnect import client_socket
from ferrum_local.http.errors import ApiError
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import state

log = logging.getLogger(__name__)

READ_CHUNK_BYTES = 64 * 1024
DRAIN_TIMEOUT_S = 5.0
NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
ONE_KIND_OF_BRACKET = bytes.maketrans(b"{}", b"[]")


def json_response(obj: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(obj), status=status, content_type="application/json")


def read_json_body() -> object:
    """The body of the current request, decoded to plain dicts, lists, strings and numbers.

    Strict JSON: no NaN, no duplicate keys, no half surrogate pairs.

    :raises ApiError: 400, 408, 413 or 415, with a message that says what was expected.
    """
    if not _is_json(request.mimetype):
        shown = request.mimetype[:80] or "no Content-Type"
        raise ApiError(
            f"The request body must be sent as application/json (got {shown}).",
            status=415,
            code="unsupported_media_type",
        )
    return decode_json(read_body(), max_depth=state().config.max_json_depth)


def read_body() -> bytes:
    """The bytes of the current request's body; the limit holds for chunked bodies too.

    :raises ApiError: 400 when it is empty or broken off, 408 too slow, 413 too large.
    """
    pieces: list[bytes] = []
    with time_limit(state().config.body_timeout_s) as expired:
        try:
            while piece := request.stream.read(READ_CHUNK_BYTES):
                pieces.append(piece)
        except RequestEntityTooLarge as exc:
            raise body_too_large() from exc
        except Exception as exc:  # each server has its own errors for bad chunks and lost peers
            if not expired.is_set():
                raise broken_off() from exc
    if expired.is_set():
        raise ApiError("The request body came too slowly.", status=408, code="body_timeout")
    body = b"".join(pieces)
    if len(body) < (request.content_length or 0):  # some servers just end the stream
        raise broken_off()
    if not body.strip():
        raise ApiError("The request body is empty; a JSON object was expected.", code="empty_body")
    return body


def register_body_drain(app: Flask) -> None:
    """Read what is left of a refused request's body before the reply goes out.

    Most clients send all of it before they look for a reply. Closing on them would
    turn the reply into a connection reset.
    """

    @app.after_request
    def drain(response: Response) -> Response:
        if response.status_code >= 400:
            _discard_body()
        return response


def _discard_body() -> None:
    stream = request.environ["wsgi.input"]
    declared = request.content_length
    if not declared and "Transfer-Encoding" not in request.headers:
        return
    record = current_record()
    with time_limit(DRAIN_TIMEOUT_S):
        try:
            while True:
                n_left = READ_CHUNK_BYTES
                if declared is not None:
                    n_left = min(n_left, declared - record.bytes_received)
                if n_left <= 0 or not stream.read(n_left):
                    return
        except Exception as exc:
            # The error that refused the request is the one to report.
            log.debug("%s body not read to its end: %r", record.request_id, exc)


@contextmanager
def time_limit(timeout_s: float) -> Iterator[threading.Event]:
    """End all reading from the client after ``timeout_s``; the event tells that it happened.

    A socket timeout would not do: it starts anew with every byte that trickles in.
    """
    expired = threading.Event()
    sock = client_socket(request.environ)
    if sock is None:
        yield expired
        return

    def expire() -> None:
        expired.set()
        with suppress(OSError):  # gone already
            sock.shutdown(socket.SHUT_RD)

    with state().time_limits.limit(timeout_s, expire):
        yield expired


def broken_off() -> ApiError:
    return ApiError("The request body could not be read to its end.", code="body_broken_off")


def body_too_large() -> ApiError:
    limit = current_app.config["MAX_CONTENT_LENGTH"]
    return ApiError(
        f"The request body is larger than this server accepts ({limit} bytes).",
        status=413,
        code="body_too_large",
    )


def decode_json(body: bytes, *, max_depth: int) -> object:
    """Strict JSON to plain Python values.

    :raises ApiError: 400 that says what is wrong.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _invalid_json(f"it is not UTF-8 (byte {exc.start})") from exc
    if nests_deeper_than(max_depth, body):
        raise _invalid_json(f"it nests deeper than {max_depth} levels")
    try:
        decoded: object = msgspec.json.decode(body)
        _unique_keys.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as exc:
        raise _invalid_json(str(exc)) from exc
    return decoded


def nests_deeper_than(max_depth: int, body: bytes) -> bool:
    """Whether arrays and objects nest deeper than ``max_depth``, without any recursion.

    Exact for valid JSON. For anything else: False only if no parser can get deeper than
    twice ``max_depth`` before it meets the fault.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    outside_strings = b"".join(body.split(b'"')[::2])
    brackets = outside_strings.translate(None, NOT_BRACKETS).translate(ONE_KIND_OF_BRACKET)
    # Each pass takes away the innermost level everywhere.
    for _ in range(max_depth):
        peeled = brackets.replace(b"[]", b"")
        if len(peeled) == len(brackets):
            break
        brackets = peeled
    return b"[]" in brackets or brackets.count(b"[") > max_depth


def _is_json(mimetype: str) -> bool:
    return mimetype == "application/json" or (
        mimetype.startswith("application/") and mimetype.endswith("+json")
    )


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {json.dumps(key[:80])} comes twice in one object")
        seen.add(key)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# msgspec keeps the last of two equal keys without a word. This second look builds nothing.
_unique_keys = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates,
    parse_int=len,
    parse_float=len,
    parse_constant=_refuse_constant,
)


def _invalid_json(why: str) -> ApiError:
    why = why.removeprefix("JSON is malformed: ")
    return ApiError(f"The request body is not valid JSON: {why}.", code="invalid_json")
