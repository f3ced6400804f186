"""What leaves a session: events as JSON, each with an id of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from ferrum_local.http.errors import as_api_error


class Outlet:
    """:param send: takes the bytes of one event."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def event(self, type_: str, **fields: Any) -> None:
        event = {"type": type_, "event_id": f"event_{secrets.token_hex(8)}", **fields}
        self._send(msgspec.json.encode(event))

    def error(self, exc: BaseException, client_event_id: str | None = None) -> None:
        """The session goes on after it."""
        self.event("error", error={**error_fields(exc), "event_id": client_event_id})


def error_fields(exc: BaseException) -> dict[str, Any]:
    """As OpenAI's error objects have them, whatever was raised."""
    error = as_api_error(exc)
    return {
        "type": error.type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }
