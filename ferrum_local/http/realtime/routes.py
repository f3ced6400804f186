"""``GET /v1/realtime``: the request that becomes a WebSocket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from flask import Blueprint, Response, request
from wsproto.utilities import generate_accept_token

from ferrum_local.errors import ModelNotFound
from ferrum_local.http.disconnect import client_socket
from ferrum_local.http.errors import ApiError, ErrorBody
from ferrum_local.http.openai.call import client_id
from ferrum_local.http.openapi import documented
from ferrum_local.http.realtime.model_names import chat_name
from ferrum_local.http.realtime.session import Session
from ferrum_local.http.realtime.settings import SessionSettings, updated
from ferrum_local.http.realtime.websocket import Waker, WebSocket
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import AppState, state

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

blueprint = Blueprint("openai_realtime", __name__)

SUBPROTOCOL = "realtime"
WEBSOCKET_VERSION = "13"
HANDSHAKE_TIMEOUT_S = 10.0
_UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


@blueprint.get("/v1/realtime")
@documented(summary="Talk, over a WebSocket", other={426: ErrorBody})
def explain() -> Response:
    raise ApiError(
        "/v1/realtime is a WebSocket: connect with ws:// and a client for OpenAI's Realtime API.",
        status=426,
        code="upgrade_required",
        headers=_UPGRADE,
    )


@blueprint.route("/v1/realtime", websocket=True)
def realtime() -> Response:
    key = _handshake_key()
    if "api_key" in request.args:
        raise ApiError(
            "A key does not belong into the URL, where logs keep it: send Authorization: Bearer, "
            "or from a browser the subprotocol openai-insecure-api-key.YOUR_KEY.",
            status=401,
            code="api_key_in_url",
        )
    app = state()
    sock = client_socket(request.environ)
    if sock is None:
        raise ApiError("This server cannot hold WebSockets.", status=501, code="unsupported")
    settings = _first_settings(app)
    with app.realtime_gate.admit(), app.gate.admit():
        _accept(sock, key)
        _serve(app, sock, settings)
    return _Taken(status=101)


def _serve(app: AppState, sock: socket.socket, settings: SessionSettings) -> None:
    record = current_record()
    record.status = 101
    record.model = settings.model
    limits = app.config.realtime
    waker = Waker()
    connection = WebSocket(sock, waker, max_message_bytes=limits.max_message_bytes)
    try:
        Session(
            connection, waker, app.engine, settings, limits,
            client_id=client_id(app.config),
            metadata={"x_request_id": record.request_id},
        ).run()  # fmt: skip
    finally:
        connection.release()
        waker.close()


def _first_settings(app: AppState) -> SessionSettings:
    """What a session begins with: the models that are there.

    :raises FerrumError: no such model, none at all, or not yet.
    """
    settings = SessionSettings()
    if request.args.get("intent") == "transcription":
        app.engine.resolve_model(None, "transcription")
        return updated(settings, {"type": "transcription"})
    info = app.engine.resolve_model(chat_name(request.args.get("model")))
    settings = msgspec.structs.replace(settings, model=info.id)
    with contextlib.suppress(ModelNotFound):
        voice = app.engine.resolve_voice(None)
        return updated(settings, {"audio": {"output": {"voice": voice}}})
    return updated(settings, {"output_modalities": ["text"]})


def _handshake_key() -> str:
    """:raises ApiError: it is no WebSocket handshake of today's version."""
    key = request.headers.get("Sec-WebSocket-Key", "").strip()
    version = request.headers.get("Sec-WebSocket-Version", "").strip()
    if not key or version != WEBSOCKET_VERSION:
        raise ApiError(
            "Not a valid WebSocket handshake: expected Sec-WebSocket-Key and version 13.",
            status=400 if version == WEBSOCKET_VERSION else 426,
            code="invalid_handshake",
            headers={**_UPGRADE, "Sec-WebSocket-Version": WEBSOCKET_VERSION},
        )
    return key


def _accept(sock: socket.socket, key: str) -> None:
    offered = [
        name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")
    ]
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        *(f"{name}: {value}" for name, value in _UPGRADE.items()),
        f"Sec-WebSocket-Accept: {generate_accept_token(key.encode()).decode()}",
        f"X-Request-Id: {current_record().request_id}",
    ]
    if SUBPROTOCOL in offered:
        lines.append(f"Sec-WebSocket-Protocol: {SUBPROTOCOL}")
    sock.settimeout(HANDSHAKE_TIMEOUT_S)
    sock.sendall("\r\n".join((*lines, "", "")).encode("latin-1"))


class _Taken(Response):
    """Stands for the 101 that was sent already: has the server below just close the connection."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # What each of them takes for a connection that needs no reply.
        error: type[Exception] = StopIteration
        if "werkzeug.socket" in environ:
            error = ConnectionAbortedError
        raise error("the WebSocket has ended")
