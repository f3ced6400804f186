"""An HTTP client for the commands that talk to a running server: chat, ps and bench."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import click

from ferrum_local.errors import FerrumError

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 600.0  # between two reads; the server sends keep-alives in between
_JSON = "application/json"


class ServerUnreachable(FerrumError):
    """Nothing answers at this address."""

    code = "server_unreachable"


class ServerRefused(FerrumError):
    """The server answered with an error; the message is its own.

    :ivar status: of the HTTP reply.
    """

    def __init__(self, message: str, status: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status


class ServerClient:
    """Requests to one server, each over a connection of its own.

    :param url: ``http://HOST:PORT``, with or without ``/v1`` at its end.
    :raises click.BadParameter: it is no such address.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError
        except ValueError:
            raise click.BadParameter(
                f"expected http://HOST:PORT, got {url!r}", param_hint="--url"
            ) from None
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._is_tls = parts.scheme == "https"
        self.host, self._port = parts.hostname, port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.api_key = api_key
        self._answer_timeout_s = answer_timeout_s

    def get(self, path: str, *, allowed: tuple[int, ...] = ()) -> Any:
        """The decoded JSON of a reply.

        :param allowed: error statuses whose bodies are answers all the same.
        :raises ServerUnreachable: nothing listens there. ServerRefused: for an error.
        """
        return _decoded(self._read("GET", path, allowed=allowed))

    def get_text(self, path: str) -> str:
        return self._read("GET", path).decode("utf-8", "replace")

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return _decoded(self.post_for_bytes(path, body))

    def post_for_bytes(self, path: str, body: Mapping[str, Any]) -> bytes:
        return self._read("POST", path, json.dumps(body).encode(), _JSON)

    def post_file(self, path: str, fields: Mapping[str, str], name: str, data: bytes) -> Any:
        """A form with one file in its field ``file``."""
        boundary = uuid.uuid4().hex
        head = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
            for key, value in fields.items()
        )
        head += (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        body = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
        return _decoded(self._read("POST", path, body, f"multipart/form-data; boundary={boundary}"))

    def stream(self, path: str, body: Mapping[str, Any]) -> EventStream:
        """Start a streamed request; what can be refused is refused here."""
        encoded = json.dumps({**body, "stream": True}).encode()
        connection, response = self._send("POST", path, encoded, _JSON)
        return EventStream(connection, response)

    def _read(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str | None = None,
        *,
        allowed: tuple[int, ...] = (),
    ) -> bytes:
        connection, response = self._send(method, path, body, content_type, allowed=allowed)
        with closing(connection), _connection_errors(self.url):
            return response.read()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str | None,
        *,
        allowed: tuple[int, ...] = (),
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self.host, self._port, timeout=CONNECT_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        if content_type is not None:
            headers["Content-Type"] = content_type
        try:
            with _connection_errors(self.url):
                connection.connect()
                connection.sock.settimeout(self._answer_timeout_s)
                connection.request(method, self._prefix + path, body, headers)
                response = connection.getresponse()
                if response.status >= 400 and response.status not in allowed:
                    raise _refusal(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        return connection, response


class EventStream:
    """The JSON events of one streamed reply. Leaving the block closes the connection, and with
    it ends the work on the server."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """:raises FerrumError: an error event, or a stream that ends before it is complete."""
        try:
            for line in self._response:
                if not line.startswith(b"data: "):
                    continue  # the blank line between events, or a keep-alive
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                event = _decoded(data)
                if "error" in event:
                    raise FerrumError(str(event["error"].get("message", "the server failed")))
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise FerrumError(
                f"The connection was lost before the answer was complete: {_reason(error)}."
            ) from None
        raise FerrumError("The server closed the connection before the answer was complete.")


@contextmanager
def _connection_errors(url: str) -> Iterator[None]:
    try:
        yield
    except ConnectionRefusedError:
        raise ServerUnreachable(
            f"Nothing listens at {url}. Start a server with `ferrum-local serve`, or name one "
            "with --url."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(
            f"{url} does not answer as a server would: {_reason(error)}."
        ) from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _refusal(status: int, body: bytes) -> ServerRefused:
    try:
        error = json.loads(body)["error"]
        return ServerRefused(str(error["message"]), status, error.get("code"))
    except (ValueError, KeyError, TypeError):
        return ServerRefused(f"The server answered with status {status}.", status)


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise FerrumError("What answers there is no ferrum-local: its reply is no JSON.") from None
