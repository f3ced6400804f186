"""The application factory: one Flask app around one engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from flask import Blueprint, Flask

from ferrum_local.engine.contracts import Engine
from ferrum_local.http import openapi, operations, requests, rerank, tokens
from ferrum_local.http.auth import register_auth
from ferrum_local.http.bodies import register_body_drain
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.departures import DepartureWatch
from ferrum_local.http.errors import register_error_handlers
from ferrum_local.http.gate import StreamGate
from ferrum_local.http.metrics import HttpMetrics
from ferrum_local.http.openai import (
    chat,
    completions,
    embeddings,
    models,
    speech,
    transcriptions,
)
from ferrum_local.http.origins import register_origin_checks
from ferrum_local.http.realtime import routes as realtime
from ferrum_local.http.remote_media import RemoteMedia
from ferrum_local.http.request_context import RecordingWsgi, register_request_context
from ferrum_local.http.state import EXTENSION, AppState
from ferrum_local.http.time_limits import TimeLimits
from ferrum_local.http.transcripts import TranscriptStore

DEFAULT_CONFIG = HttpConfig()


class _App(Flask):
    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Flask asks at each view and hook of each request whether it is a coroutine; none is."""
        return func


def create_app(
    engine: Engine,
    config: HttpConfig = DEFAULT_CONFIG,
    *,
    on_shutdown: Callable[[], None] | None = None,
    remote_media: RemoteMedia | None = None,
) -> Flask:
    """Build an application that any WSGI server can run. Each call has its own metrics.

    :param on_shutdown: what ``POST /shutdown`` calls; it returns at once. None: it is refused.
    :param remote_media: fetches URLs; None: as ``config.allow_remote_media`` says.
    """
    app = _App("ferrum_local", static_folder=None)
    app.url_map.strict_slashes = False
    app.config["MAX_CONTENT_LENGTH"] = config.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"] = config.max_body_bytes

    metrics = HttpMetrics(engine)
    app.extensions[EXTENSION] = AppState(
        engine=engine,
        config=config,
        gate=StreamGate(config.max_streams),
        realtime_gate=StreamGate(config.realtime.max_sessions, "realtime sessions"),
        departures=DepartureWatch(),
        time_limits=TimeLimits(),
        metrics=metrics,
        started_at=time.time(),
        transcripts=TranscriptStore(),
        on_shutdown=on_shutdown,
        remote_media=remote_media or _remote_media(config),
    )
    # Hooks run in this order: the id first, so that every refusal carries it.
    register_request_context(app)
    metrics.install(app)
    register_origin_checks(app, config)
    register_auth(app, config)
    register_body_drain(app)
    register_error_handlers(app)
    for blueprint in _blueprints(config):
        app.register_blueprint(blueprint)
    # Flask's documented place for WSGI middleware.
    app.wsgi_app = RecordingWsgi(  # type: ignore[method-assign]
        app.wsgi_app,
        on_start=metrics.request_started,
        on_end=metrics.request_ended,
        log_content=config.log_content,
    )
    return app


def _remote_media(config: HttpConfig) -> RemoteMedia | None:
    return RemoteMedia(max_bytes=config.max_body_bytes) if config.allow_remote_media else None


def _blueprints(config: HttpConfig) -> Iterator[Blueprint]:
    yield operations.blueprint
    yield openapi.blueprint
    yield models.blueprint
    yield requests.blueprint
    if config.debug:
        yield requests.debug_blueprint
    yield chat.blueprint
    yield completions.blueprint
    yield tokens.blueprint
    yield embeddings.blueprint
    yield rerank.blueprint
    yield transcriptions.blueprint
    yield speech.blueprint
    yield realtime.blueprint
