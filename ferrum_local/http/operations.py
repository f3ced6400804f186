"""Routes for people and machines that run the server: what it is, how it is, what it did."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec
from flask import Blueprint, Response, request

from ferrum_local import __version__
from ferrum_local.engine.contracts import EngineStatus
from ferrum_local.http.bodies import json_response
from ferrum_local.http.errors import ApiError, retry_after
from ferrum_local.http.metrics import METRICS_PATH
from ferrum_local.http.openapi import documented
from ferrum_local.http.state import state

blueprint = Blueprint("operations", __name__)

# How soon to ask again. A draining or failed server does not come back by itself.
RETRY_AFTER_S = {"loading": 2.0, "draining": 10.0, "failed": 30.0}


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``GET /``."""

    name: str
    version: str
    api_version: str
    status: str


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    active_requests: int
    queued_requests: int


class SchedulerHealth(msgspec.Struct, frozen=True, kw_only=True):
    total_requests: int
    successful_requests: int
    failed_requests: int
    throughput_rps: float


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    state: str
    error: str | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """``status``: healthy, loading, draining or failed. ``timestamp``: RFC 3339 in UTC."""

    status: str
    timestamp: str
    version: str
    engine: EngineHealth
    scheduler: SchedulerHealth
    models: list[ModelHealth]


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class ShutdownStarted(msgspec.Struct, frozen=True, kw_only=True):
    status: str = "draining"


@blueprint.get("/")
@documented(summary="Name and version of this server", response=ServerInfo, tag="operations")
def server_info() -> Response:
    engine_state = state().engine.status().state
    return json_response(
        ServerInfo(
            name="ferrum-local",
            version=__version__,
            api_version="v1",
            status="running" if engine_state == "ready" else engine_state,
        )
    )


@blueprint.get("/health")
@documented(
    summary="Whether requests can be served right now",
    response=Health,
    tag="operations",
    other={503: Health},
)
def health() -> Response:
    """200 when ready; 503 with the same body while loading or draining, or after a failed load."""
    engine_status = state().engine.status()
    ready = engine_status.state == "ready"
    response = json_response(_health(engine_status), status=200 if ready else 503)
    response.headers["Cache-Control"] = "no-store"
    if not ready:
        response.headers["Retry-After"] = retry_after(RETRY_AFTER_S[engine_status.state])
    return response


@blueprint.get("/health/live")
@documented(summary="Whether the process answers at all", response=Liveness, tag="operations")
def liveness() -> Response:
    return json_response(Liveness(status="alive"))


@blueprint.post("/shutdown")
@documented(
    summary="Stop the server: it drains and ends; only with an API key",
    response=ShutdownStarted,
    tag="operations",
)
def shutdown() -> Response:
    """Without a key, every program of every user on this machine could end the server, and every
    page of an allowed origin."""
    config, on_shutdown = state().config, state().on_shutdown
    if on_shutdown is None:
        raise ApiError(
            "This server is part of another program, which stops it.",
            status=403,
            code="shutdown_not_offered",
        )
    if not config.needs_key and not config.owner_only:
        raise ApiError(
            "Only a server with an API key can be stopped over HTTP: start it with --token-file, "
            "--api-key or --api-key-file.",
            status=403,
            code="shutdown_needs_key",
        )
    on_shutdown()
    return json_response(ShutdownStarted())


@blueprint.get(METRICS_PATH)
@documented(summary="Prometheus metrics", response=str, tag="operations")
def metrics() -> Response:
    body, content_type = state().metrics.exposition(request.headers.get("Accept"))
    return Response(body, content_type=content_type)


def _health(engine_status: EngineStatus) -> Health:
    totals = state().engine.metrics()
    return Health(
        status="healthy" if engine_status.state == "ready" else engine_status.state,
        timestamp=datetime.now(timezone.utc).isoformat(),
        version=__version__,
        engine=EngineHealth(
            active_requests=engine_status.active_requests,
            queued_requests=engine_status.queued_requests,
        ),
        scheduler=SchedulerHealth(
            total_requests=totals.total_requests,
            successful_requests=totals.successful_requests,
            failed_requests=totals.failed_requests,
            throughput_rps=totals.throughput_rps,
        ),
        models=[
            ModelHealth(id=model.id, kind=model.kind, state=model.state, error=model.error)
            for model in engine_status.models
            if model.state != "unloaded"  # there may be many, and they tell nothing of the health
        ],
    )
