"""HTTP as bytes, for what the official client does not show: framing, errors, odd bodies."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 300


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; asserts that there is nothing else in the body."""
        assert set(self.json) == {"error"}
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """The stream's events, [DONE] as that text; asserts the framing. Comments are left out."""
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert self.body.endswith(b"\n\n")
        frames = [f for f in self.body.decode().split("\n\n")[:-1] if not f.startswith(":")]
        assert all(f.startswith("data: ") and "\n" not in f for f in frames)
        return [
            "[DONE]" if f == "data: [DONE]" else json.loads(f.removeprefix("data: "))
            for f in frames
        ]


def post(url: str, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
    """``body`` is sent as JSON; bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        connection.request(
            "POST", path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        lowered = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, lowered, response.read())
    finally:
        connection.close()
