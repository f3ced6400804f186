"""``DELETE /v1/requests/{id}``: cancel a request by id; and the integrity check for debugging."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response

from ferrum_local.http.bodies import json_response
from ferrum_local.http.errors import ApiError
from ferrum_local.http.openapi import documented
from ferrum_local.http.state import state

blueprint = Blueprint("requests", __name__)
debug_blueprint = Blueprint("debug", __name__)


class CancelledRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "request.cancelled"
    cancelled: bool = True


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    status: str


@blueprint.delete("/v1/requests/<path:request_id>")
@documented(
    summary="Cancel a running or waiting request, by its X-Request-Id or its answer's id",
    response=CancelledRequest,
    tag="operations",
)
def cancel_request(request_id: str) -> Response:
    if not state().engine.cancel(request_id):
        raise ApiError(
            f"No request {request_id!r} is running or waiting.",
            status=404,
            type="not_found_error",
            code="request_not_found",
        )
    return json_response(CancelledRequest(id=request_id))


@debug_blueprint.get("/debug/check")
@documented(
    summary="Compare the engine's books with llama.cpp's; only with --debug",
    response=CheckResult,
    tag="operations",
)
def check() -> Response:
    """A disagreement is a bug of ours and comes as a 500, with what disagrees in the log."""
    state().engine.check()
    return json_response(CheckResult(status="ok"))
