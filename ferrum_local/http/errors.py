"""Every error becomes OpenAI's JSON shape here; the one table from typed errors to HTTP."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping

import msgspec
from flask import Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.wrappers import Response as WerkzeugResponse

from ferrum_local.errors import (
    Cancelled,
    DeadlineExceeded,
    FerrumError,
    GenerationFailed,
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    QueueFull,
    Unavailable,
)
from ferrum_local.http.request_context import current_record

log = logging.getLogger(__name__)

PLAIN_PARAM = re.compile(r"[\w.\[\]-]{1,80}", re.ASCII)

# The closest base class in an error's MRO decides. 499 (the caller left, or the request was
# cancelled by id) is nginx's number: nobody retries it and it is not a fault of the server.
STATUS_AND_TYPE: Mapping[type[FerrumError], tuple[int, str]] = {
    InvalidRequest: (400, "invalid_request_error"),
    ModelNotFound: (404, "not_found_error"),
    QueueFull: (429, "rate_limit_error"),
    Cancelled: (499, "invalid_request_error"),
    GenerationFailed: (500, "server_error"),
    ModelLoadError: (500, "server_error"),
    Unavailable: (503, "service_unavailable_error"),
    DeadlineExceeded: (504, "server_error"),
    FerrumError: (500, "server_error"),
}

TYPE_BY_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}

MESSAGE_BY_STATUS: Mapping[int, str] = {
    413: "The request body is larger than this server accepts.",
    415: "The request body must be sent as application/json.",
}

DEFAULT_RETRY_AFTER_S = 1.0
INTERNAL_ERROR_MESSAGE = "The server hit an internal error. Its log has the details."


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's ``error`` object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of a reply that failed, and of the error event on a stream."""

    error: ErrorDetail


class ApiError(Exception):
    """An error of the HTTP layer itself, ready to send.

    :param message: one sentence for a person: what was wrong and what is expected.
    :param type: OpenAI's error type; derived from ``status`` when left out.
    :param param: path of the field at fault, as ``messages[2].content``.
    :param headers: sent with the reply, beside the usual ones.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type or type_for_status(status)
        self.param = param
        self.code = code
        self.headers: Mapping[str, str] = headers or {}


def type_for_status(status: int) -> str:
    default = "invalid_request_error" if status < 500 else "server_error"
    return TYPE_BY_STATUS.get(status, default)


def as_api_error(exc: BaseException) -> ApiError:
    """Whatever was raised, as a client may see it. Unknown exceptions tell nothing."""
    if isinstance(exc, ApiError):
        return exc
    if isinstance(exc, FerrumError):
        return _from_ferrum_error(exc)
    if isinstance(exc, HTTPException) and exc.code is not None:
        return _from_http_exception(exc, exc.code)
    return ApiError(INTERNAL_ERROR_MESSAGE, status=500, code="internal_error")


def error_body(exc: BaseException) -> ErrorBody:
    """The JSON body for ``exc``; encode it with msgspec."""
    error = as_api_error(exc)
    return ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code))


def error_response(exc: BaseException) -> Response:
    error = as_api_error(exc)
    current_record().error = _for_access_line(error)
    response = Response(
        msgspec.json.encode(error_body(error)),
        status=error.status,
        content_type="application/json",
    )
    response.headers.update(error.headers)
    return response


def _for_access_line(error: ApiError) -> str:
    """Which error it was, and of which field, unless that is no name that fits into a line."""
    kind = error.code or error.type
    is_plain = error.param is not None and PLAIN_PARAM.fullmatch(error.param)
    return f"{kind}({error.param})" if is_plain else kind


def retry_after(seconds: float) -> str:
    """A Retry-After value: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))


def register_error_handlers(app: Flask) -> None:
    app.register_error_handler(ApiError, error_response)
    app.register_error_handler(FerrumError, _handle_ferrum_error)
    app.register_error_handler(HTTPException, _handle_http_exception)
    app.register_error_handler(Exception, _handle_unexpected)


def _from_ferrum_error(exc: FerrumError) -> ApiError:
    status, type_ = next(STATUS_AND_TYPE[c] for c in type(exc).__mro__ if c in STATUS_AND_TYPE)
    headers = {}
    if isinstance(exc, (QueueFull, Unavailable)):
        headers["Retry-After"] = retry_after(exc.retry_after_s)
    return ApiError(
        exc.message, status=status, type=type_, param=exc.param, code=exc.code, headers=headers
    )


def _from_http_exception(exc: HTTPException, status: int) -> ApiError:
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = retry_after(DEFAULT_RETRY_AFTER_S)
    message = MESSAGE_BY_STATUS.get(status) or exc.description or exc.name
    return ApiError(message, status=status, headers=headers)


def _unknown_route() -> ApiError:
    asked = f"{request.method[:20]} {request.path[:200]}"
    hint = ""
    adapter = current_app.create_url_adapter(request)
    if adapter is not None and adapter.test(f"/v1{request.path}", request.method):
        hint = "; did you mean /v1" + request.path[:200] + "?"
        hint += " The base URL of a client ends in /v1."
    return ApiError(f"Unknown route: {asked}{hint}", status=404, code="unknown_route")


def _wrong_method(exc: MethodNotAllowed) -> ApiError:
    methods = sorted(exc.valid_methods or ())
    allowed = ", ".join(methods)
    useful = ", ".join(m for m in methods if m not in ("HEAD", "OPTIONS")) or allowed
    return ApiError(
        f"{request.path[:200]} does not answer {request.method[:20]}; it takes {useful}.",
        status=405,
        code="method_not_allowed",
        headers={"Allow": allowed},
    )


def _handle_ferrum_error(exc: FerrumError) -> Response:
    if as_api_error(exc).status == 500:
        _log_failure(exc)
    return error_response(exc)


def _handle_http_exception(exc: HTTPException) -> WerkzeugResponse:
    if exc.code is None or exc.code < 400:  # a redirect, or a ready-made response
        return exc.get_response(request.environ)
    if isinstance(exc, NotFound):
        return error_response(_unknown_route())
    if isinstance(exc, MethodNotAllowed):
        return error_response(_wrong_method(exc))
    return error_response(exc)


def _handle_unexpected(exc: Exception) -> Response:
    _log_failure(exc)
    return error_response(exc)


def _log_failure(exc: Exception) -> None:
    record = current_record()
    log.error(
        "%s %s %s failed",
        record.request_id,
        record.method,
        record.route,
        exc_info=exc,
        extra={"request_id": record.request_id},
    )
