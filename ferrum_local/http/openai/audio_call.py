"""What the audio routes share: model names, time limits, replies that are a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Literal

from flask import Response, request

from ferrum_local.audio_types import TranscribedSegment
from ferrum_local.engine.contracts import ModelInfo, TranscriptionStream
from ferrum_local.errors import Cancelled, DeadlineExceeded
from ferrum_local.http.disconnect import client_gone
from ferrum_local.http.openai.call import request_deadline_s
from ferrum_local.http.openai.hosted_names import without_hosted_name
from ferrum_local.http.openai.parallel import TICK_S
from ferrum_local.http.request_context import RequestRecord, current_record
from ferrum_local.http.sse import note_broken_stream
from ferrum_local.http.state import state


def resolve(name: str | None, kind: Literal["transcription", "speech"]) -> ModelInfo:
    """The model of ``kind`` that ``name`` means; OpenAI's own names mean the first one.

    :raises ModelNotFound: nothing answers to it.
    """
    return state().engine.resolve_model(without_hosted_name(name, kind), kind)


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"


def metadata() -> dict[str, str]:
    return {"x_request_id": current_record().request_id}


class Patience:
    """Tells when work for the current request is in vain: its time is up, or its client left."""

    def __init__(self) -> None:
        """:raises ApiError: 400 for a bad time limit of the client's."""
        limit_s = request_deadline_s(state().config)
        self.limit_s = limit_s
        self._until_s = None if limit_s is None else time.monotonic() + limit_s
        self.client_left: Callable[[], bool] = client_gone(request.environ)

    def check(self) -> None:
        """:raises DeadlineExceeded: the time is up. Cancelled: the client left."""
        if self._until_s is not None and time.monotonic() > self._until_s:
            raise DeadlineExceeded("The request's time limit passed before it finished.")
        if self.client_left():
            raise Cancelled("The client left before the answer was complete.")


def polled(stream: TranscriptionStream, patience: Patience) -> Iterator[TranscribedSegment | None]:
    """Segments as they come, and None when there was none for a moment."""
    while True:
        try:
            segment = stream.poll(TICK_S)
        except StopIteration:
            return
        patience.check()
        yield segment


def binary_stream(
    pieces: Iterator[bytes], *, media_type: str, on_close: Callable[[], None]
) -> Response:
    """Send ``pieces`` as they come. An error ends the connection, so that nobody takes what came
    for the whole."""
    body = _BinaryStream(pieces, on_close, current_record())
    response = Response(body, content_type=media_type)
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"  # nginx would hold the first sound back
    return response


class _BinaryStream:
    """The WSGI body of a stream that is no text."""

    def __init__(
        self, pieces: Iterator[bytes], on_close: Callable[[], None], record: RequestRecord
    ) -> None:
        self._pieces = pieces
        self._on_close: Callable[[], None] | None = on_close
        self._record = record

    def __iter__(self) -> _BinaryStream:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except Exception as exc:
            note_broken_stream(self._record, exc)
            raise

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
