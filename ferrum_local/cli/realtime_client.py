"""A client of ``/v1/realtime``: events as dicts, as OpenAI's reference has them."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from ferrum_local.errors import FerrumError

if TYPE_CHECKING:
    from websockets.exceptions import ConnectionClosed, InvalidStatus

MAX_EVENT_BYTES = 64 * 1024 * 1024
_WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class RealtimeClient:
    """One session. ``send`` may be called beside a thread that waits in ``receive``.

    Use it as a context manager.
    """

    def __init__(self, url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        """:param url: of the server, with or without ``/v1``.
        :raises FerrumError: it cannot be reached, or refuses; one line for people.
        """
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect

        address = realtime_url(url, model)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._held = ExitStack()
        try:
            # A local server is never behind the proxy that the environment may name.
            self._socket = self._held.enter_context(
                connect(address, additional_headers=headers, max_size=MAX_EVENT_BYTES, proxy=None)
            )
        except InvalidStatus as error:
            raise FerrumError(f"{url}: {_refusal(error)}") from error
        except (OSError, InvalidHandshake) as error:
            raise FerrumError(f"{url}: no server can be reached there ({error})") from error

    def send(self, type_: str, **fields: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(json.dumps({"type": type_, **fields}))
        except ConnectionClosed as error:
            raise FerrumError(_ending(error)) from error

    def append(self, pcm: bytes) -> None:
        """Add to what was heard: 16-bit samples at the session's input rate."""
        self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode("ascii"))

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next event.

        :raises TimeoutError: none came. FerrumError: the connection has ended.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            event = json.loads(self._socket.recv(timeout_s))
        except ConnectionClosed as error:
            raise FerrumError(_ending(error)) from error
        if not isinstance(event, dict):
            raise FerrumError("The server sent something that is no event.")
        return event

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> RealtimeClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def realtime_url(url: str, model: str | None) -> str:
    """``http://host:8000`` or ``…/v1`` → the address of the socket.

    :raises FerrumError: it is no address of a server.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = _WEBSOCKET_SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise FerrumError(f"{url}: is no address of a server; http://127.0.0.1:8000 is one")
    path = parts.path.rstrip("/").removesuffix("/realtime").removesuffix("/v1")
    query = f"?model={quote(model, safe='')}" if model else ""
    return f"{scheme}://{parts.netloc}{path}/v1/realtime{query}"


def _refusal(error: InvalidStatus) -> str:
    """What the server says in the body of its refusal."""
    try:
        return str(json.loads(error.response.body or b"")["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers {error.response.status_code}; is it ferrum-local?"


def _ending(error: ConnectionClosed) -> str:
    if error.rcvd is None:
        return "The connection to the server broke off."
    reason = f": {error.rcvd.reason}" if error.rcvd.reason else ""
    return f"The server ended the session ({error.rcvd.code}{reason})."
