"""``GET /v1/realtime``: the request that becomes a WebSocket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import msgspec
from flask import Blueprint, Response, g, request
from flask_sock import Sock
from wsproto.utilities import ProtocolError

from ferrum_local.errors import ModelNotFound
from ferrum_local.http.disconnect import client_socket
from ferrum_local.http.errors import ApiError, ErrorBody
from ferrum_local.http.openai.call import client_id
from ferrum_local.http.openai.hosted_names import without_hosted_name
from ferrum_local.http.openapi import documented
from ferrum_local.http.realtime.session import Session
from ferrum_local.http.realtime.settings import SessionSettings, updated
from ferrum_local.http.realtime.websocket import Waker, WebSocket
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import AppState, state

if TYPE_CHECKING:
    from flask.blueprints import BlueprintSetupState
    from simple_websocket import Server

blueprint = Blueprint("openai_realtime", __name__)

SUBPROTOCOL = "realtime"
WEBSOCKET_VERSION = "13"
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


@blueprint.before_request
def admit() -> None:
    """Refuse what can be refused while a status code can still say why."""
    if request.url_rule is None or not request.url_rule.websocket:
        return
    _check_handshake()
    if "api_key" in request.args:
        raise ApiError(
            "A key does not belong into the URL, where logs keep it: send Authorization: Bearer, "
            "or from a browser the subprotocol openai-insecure-api-key.YOUR_KEY.",
            status=401,
            code="api_key_in_url",
        )
    app = state()
    if client_socket(request.environ) is None:
        raise ApiError("This server cannot hold WebSockets.", status=501, code="unsupported")
    g.realtime_settings = _first_settings(app)
    places = g.realtime_places = contextlib.ExitStack()
    places.enter_context(app.realtime_gate.admit())
    places.enter_context(app.gate.admit())
    # Compressed speech is no smaller, and the frames are read without extensions.
    request.environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)


@blueprint.teardown_request
def give_places_back(_error: BaseException | None = None) -> None:
    places = g.pop("realtime_places", None)
    if places is not None:
        places.close()


@blueprint.errorhandler(ProtocolError)
def refuse_handshake(error: ProtocolError) -> NoReturn:
    raise _invalid_handshake(str(error))


class _NoThread:
    """flask-sock would have a thread read the socket; a session reads on the request's own."""

    name = ""

    def __init__(self, target: Callable[[], None]) -> None:
        pass

    def start(self) -> None:
        pass


upgrades = Sock()


@blueprint.record
def configure(setup: BlueprintSetupState) -> None:
    setup.app.config["SOCK_SERVER_OPTIONS"] = {
        "subprotocols": [SUBPROTOCOL],
        "thread_class": _NoThread,
    }


@upgrades.route("/v1/realtime", bp=blueprint)  # type: ignore[untyped-decorator]
def realtime(upgraded: Server) -> None:
    upgraded.connected = False  # from here on its frames and its close are the session's
    _serve(state(), upgraded.sock, g.realtime_settings)


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
    info = app.engine.resolve_model(without_hosted_name(request.args.get("model"), "realtime"))
    settings = msgspec.structs.replace(settings, model=info.id)
    with contextlib.suppress(ModelNotFound):
        voice = app.engine.resolve_voice(None)
        return updated(settings, {"audio": {"output": {"voice": voice}}})
    return updated(settings, {"output_modalities": ["text"]})


def _check_handshake() -> None:
    """:raises ApiError: it is no WebSocket handshake of today's version."""
    if not request.headers.get("Sec-WebSocket-Key", "").strip():
        raise _invalid_handshake("Sec-WebSocket-Key is missing")
    if request.headers.get("Sec-WebSocket-Version", "").strip() != WEBSOCKET_VERSION:
        raise _invalid_handshake("Sec-WebSocket-Version is not 13", status=426)


def _invalid_handshake(reason: str, *, status: int = 400) -> ApiError:
    return ApiError(
        f"Not a valid WebSocket handshake: {reason}.",
        status=status,
        code="invalid_handshake",
        headers={**_UPGRADE, "Sec-WebSocket-Version": WEBSOCKET_VERSION},
    )
