"""Server-sent events: framing, headers, and what happens when a stream breaks half-way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import msgspec
from flask import Response

from ferrum_local.errors import Cancelled
from ferrum_local.http.errors import as_api_error, error_body
from ferrum_local.http.request_context import RequestRecord, current_record

log = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


def event(obj: object) -> bytes:
    """One ``data:`` event. Strict JSON on one line; NaN and infinities become null."""
    return b"data: " + msgspec.json.encode(obj) + b"\n\n"


def stream_response(
    events: Iterator[bytes], *, on_close: Callable[[], None] | None = None
) -> Response:
    """Send ``events`` as they come.

    However the reply ends (all sent, an error, a write to a client that left), ``events`` is
    closed if it can be, and ``on_close`` is called once. Put what must be undone into
    ``on_close`` rather than only into the generator: one that never started runs no ``finally``.
    An error after the first byte becomes one ``{"error": …}`` event and ends the stream.
    """
    return Response(_EventStream(events, on_close, current_record()), headers=HEADERS)


class _EventStream:
    """The WSGI body of a stream."""

    def __init__(
        self,
        events: Iterator[bytes],
        on_close: Callable[[], None] | None,
        record: RequestRecord,
    ) -> None:
        self._events = events
        self._on_close = on_close
        self._record = record
        self._ended = False
        self._closed = False

    def __iter__(self) -> _EventStream:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        try:
            return next(self._events)
        except StopIteration:
            self._ended = True
            raise
        except Exception as exc:
            self._ended = True
            note_broken_stream(self._record, exc)
            return event(error_body(exc))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ended = True
        try:
            close_events = getattr(self._events, "close", None)
            if close_events is not None:
                close_events()
        finally:
            if self._on_close is not None:
                self._on_close()


def note_broken_stream(record: RequestRecord, exc: Exception) -> None:
    """Put into the log, and into the access line, why a reply ended after its first byte."""
    error = as_api_error(exc)
    record.error = error.code or error.type
    log.log(
        logging.ERROR if error.status == 500 else logging.WARNING,
        "%s stream ended early: %s",
        record.request_id,
        error.message if error.status >= 500 else record.error,  # others quote the request
        exc_info=exc if error.status == 500 and not isinstance(exc, Cancelled) else None,
        extra={"request_id": record.request_id},
    )
