"""What is known of one request: its id, its counts, and the one access line at its end.

The WSGI wrapper sits outside Flask so that it sees the last byte leave, or the client leave.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flask import Flask, Response, request

from ferrum_local.http.content_log import Content

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

access_log = logging.getLogger("ferrum_local.access")

ENVIRON_KEY = "ferrum.record"
UNMATCHED_ROUTE = "unmatched"
SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Probes come every few seconds for ever; their lines are there at log level debug.
QUIET_ROUTES = frozenset({"/health", "/health/live", "/metrics"})
MAX_LOGGED_PATH = 200


@dataclass
class RequestRecord:
    """Filled in while a request is served; routes set the fields from ``model`` down.

    A route takes it with ``current_record()`` while the request context is there and keeps the
    object: a stream's generator runs after the context is gone. ``started_s`` and
    ``ended_s`` are monotonic seconds. ``route`` is the url rule, never the raw path.
    """

    request_id: str
    method: str
    path: str
    remote_addr: str
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    route: str = UNMATCHED_ROUTE
    status: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    client_left: bool = False
    error: str | None = None
    key_name: str | None = None
    content: Content | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tokens_per_s: float | None = None

    @property
    def duration_s(self) -> float:
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s


def current_record() -> RequestRecord:
    """The record of the request being handled (needs Flask's request context)."""
    record = request.environ[ENVIRON_KEY]
    assert isinstance(record, RequestRecord)
    return record


def register_request_context(app: Flask) -> None:
    """Install the hooks that name the route and put the usual headers on every reply."""

    @app.before_request
    def note_route() -> None:
        if request.url_rule is not None:
            current_record().route = request.url_rule.rule

    @app.after_request
    def add_headers(response: Response) -> Response:
        record = current_record()
        response.headers["X-Request-Id"] = record.request_id
        response.headers["openai-processing-ms"] = str(round(record.duration_s * 1000))
        return response


class RecordingWsgi:
    """Wraps a WSGI application: makes the record, counts bytes, reports start and end.

    :param on_start: called when a request arrives.
    :param on_end: called once when its body has been sent, or the sending was given up.
    :param log_content: what is asked and answered goes to the log.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        on_start: Callable[[RequestRecord], None],
        on_end: Callable[[RequestRecord], None],
        log_content: bool = False,
    ) -> None:
        self._app = app
        self._log_content = log_content
        self._on_start = on_start
        self._on_end = on_end

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        record = RequestRecord(
            request_id=_request_id(environ.get("HTTP_X_REQUEST_ID", "")),
            method=environ["REQUEST_METHOD"],
            path=environ.get("PATH_INFO", ""),
            remote_addr=environ.get("REMOTE_ADDR", ""),
        )
        if self._log_content:
            record.content = Content(environ.get("QUERY_STRING", ""))
        environ[ENVIRON_KEY] = record
        environ["wsgi.input"] = _CountingInput(environ["wsgi.input"], record)

        def recording_start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
            record.status = int(status.split(" ", 1)[0])
            if exc_info is None:
                return start_response(status, headers)
            return start_response(status, headers, exc_info)

        self._on_start(record)
        try:
            body = self._app(environ, recording_start_response)
        except BaseException:
            self._end(record)
            raise
        return _RecordedBody(body, record, self._end)

    def _end(self, record: RequestRecord) -> None:
        record.ended_s = time.monotonic()
        self._on_end(record)
        write_access_line(record)
        if record.content is not None:
            record.content.write(record.request_id)


class _RecordedBody:
    """A reply's body on its way out. Not read to its end when closed: the client left."""

    def __init__(
        self, body: Iterable[bytes], record: RequestRecord, end: Callable[[RequestRecord], None]
    ) -> None:
        self._body = body
        self._iterator: Iterator[bytes] | None = None
        self._record = record
        self._end = end
        self._finished = False
        self._closed = False

    def __iter__(self) -> _RecordedBody:
        return self

    def __next__(self) -> bytes:
        if self._iterator is None:
            self._iterator = iter(self._body)
        try:
            chunk = next(self._iterator)
        except StopIteration:
            self._finished = True
            raise
        self._record.bytes_sent += len(chunk)
        if self._record.content is not None:
            self._record.content.answered(chunk)
        return chunk

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._finished:
            self._record.client_left = True
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end(self._record)


class _CountingInput:
    """The request body as the server gives it, with a count of what was read."""

    def __init__(self, stream: Any, record: RequestRecord) -> None:
        self._stream = stream
        self._record = record

    def _count(self, data: bytes) -> bytes:
        self._record.bytes_received += len(data)
        if self._record.content is not None:
            self._record.content.asked(data)
        return data

    def read(self, *size: int) -> bytes:
        return self._count(self._stream.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._count(self._stream.readline(*size))

    def readlines(self, *hint: int) -> list[bytes]:
        return [self._count(line) for line in self._stream.readlines(*hint)]

    def __iter__(self) -> Iterator[bytes]:
        return (self._count(line) for line in self._stream)


def write_access_line(record: RequestRecord) -> None:
    """One line for people; the same facts as fields of the log record for machines."""
    level = logging.DEBUG if record.route in QUIET_ROUTES else logging.INFO
    if not access_log.isEnabledFor(level):
        return
    path = quote(record.path[:MAX_LOGGED_PATH], safe="/:@!$&'()*+,;=~", encoding="latin-1")
    fields = {
        "request_id": record.request_id,
        "method": record.method,
        "route": record.route,
        "path": path,
        "status": record.status,
        "duration_ms": round(record.duration_s * 1000, 1),
        "bytes_sent": record.bytes_sent,
        "bytes_received": record.bytes_received,
        "remote_addr": record.remote_addr,
        "client_left": record.client_left,
        "error": record.error,
        "key": record.key_name,
        "model": record.model,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "generated_tokens": record.generated_tokens,
        "queue_ms": _rounded(record.queue_ms),
        "ttft_ms": _rounded(record.ttft_ms),
        "tokens_per_s": _rounded(record.tokens_per_s),
    }
    notes = " ".join(
        f"{name}={fields[key]}"
        for name, key in (
            ("key", "key"),
            ("model", "model"),
            ("prompt", "prompt_tokens"),
            ("cached", "cached_tokens"),
            ("generated", "generated_tokens"),
            ("queue_ms", "queue_ms"),
            ("ttft_ms", "ttft_ms"),
            ("tok/s", "tokens_per_s"),
            ("error", "error"),
        )
        if fields[key] is not None
    )
    if record.client_left:
        notes = f"{notes} client_left".lstrip()
    shown = record.route if record.route != UNMATCHED_ROUTE else path
    access_log.log(
        level,
        "%s %s %s %d %.1fms%s",
        record.request_id,
        record.method,
        shown,
        record.status,
        record.duration_s * 1000,
        f" {notes}" if notes else "",
        extra=fields,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _request_id(wanted: str) -> str:
    return wanted if SANE_REQUEST_ID.fullmatch(wanted) else f"req_{uuid.uuid4().hex}"
