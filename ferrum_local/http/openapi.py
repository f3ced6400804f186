"""``GET /openapi.json``: every route, described from the structs that validate requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec
from flask import Blueprint, Flask, Response, current_app
from werkzeug.routing import Rule

from ferrum_local import __version__
from ferrum_local.http.auth import OPEN_ROUTES
from ferrum_local.http.bodies import json_response
from ferrum_local.http.errors import ErrorBody
from ferrum_local.http.state import state

View = TypeVar("View", bound=Callable[..., Any])
Json: TypeAlias = dict[str, Any]

blueprint = Blueprint("openapi", __name__)

DOC_ATTRIBUTE = "__ferrum_doc__"
REF_TEMPLATE = "#/components/schemas/{name}"
PATH_PARAMETER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")
UNDESCRIBED_METHODS = frozenset({"HEAD", "OPTIONS"})  # Flask adds these by itself

GET_ERRORS: Mapping[int, str] = {
    400: "The request is malformed.",
    401: "No valid API key was sent.",
    403: "The Host or Origin header is not one that this server answers to.",
    404: "There is no such route or model.",
    500: "A fault of this server.",
}
POST_ERRORS: Mapping[int, str] = {
    **GET_ERRORS,
    400: "The request is malformed or asks for something unsupported; the message names the field.",
    408: "The request body came too slowly.",
    413: "The request body is too large.",
    415: "The request body has the wrong media type.",
    429: "Too many requests are waiting.",
    503: "Loading, draining, or at the limit of open streams.",
    504: "The request's time limit passed.",
}
RETRY_LATER = frozenset({429, 503})


@dataclass(frozen=True)
class RouteDoc:
    """How one view is described. ``request`` and ``response`` are msgspec structs; ``str``
    as a response is plain text; ``binary`` are media types it may have besides. ``stream`` is
    the struct of one event, where the view may stream. ``other`` has the body types of further
    statuses."""

    summary: str
    request: Any = None
    response: Any = None
    stream: Any = None
    tag: str = "openai"
    other: Mapping[int, Any] = field(default_factory=dict)
    request_media: str = "application/json"
    binary: tuple[str, ...] = ()


def documented(
    *,
    summary: str,
    request: Any = None,
    response: Any = None,
    stream: Any = None,
    tag: str = "openai",
    other: Mapping[int, Any] | None = None,
    request_media: str = "application/json",
    binary: tuple[str, ...] = (),
) -> Callable[[View], View]:
    """Attach a description to a view. Put it next to the function, under ``@blueprint.post``.

    :param stream: the view may answer with server-sent events of this struct as well.
    :param other: statuses whose body is neither ``response`` nor the usual error.
    """

    def mark(view: View) -> View:
        doc = RouteDoc(summary, request, response, stream, tag, other or {}, request_media, binary)
        setattr(view, DOC_ATTRIBUTE, doc)
        return view

    return mark


@blueprint.get("/openapi.json")
@documented(summary="This description", response=dict[str, Any], tag="operations")
def openapi_json() -> Response:
    return json_response(describe(current_app, with_keys=state().config.needs_key))


def describe(app: Flask, *, with_keys: bool = False) -> Json:
    """An OpenAPI 3.1 document of the routes of ``app``.

    :param with_keys: the server asks for an API key.
    """
    # OpenAPI has no words for WebSockets.
    http_rules = (rule for rule in app.url_map.iter_rules() if not rule.websocket)
    rules = sorted(http_rules, key=lambda rule: rule.rule)
    docs = {rule.endpoint: _doc_of(app, rule) for rule in rules}
    types = _body_types(docs.values())
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    schema_of = dict(zip(map(_key, types), schemas, strict=True))

    paths: dict[str, Json] = {}
    for rule in rules:
        doc = docs[rule.endpoint]
        item = paths.setdefault(PATH_PARAMETER.sub(r"{\1}", rule.rule), {})
        for method in sorted((rule.methods or set()) - UNDESCRIBED_METHODS):
            item[method.lower()] = _operation(rule, method, doc, schema_of, with_keys=with_keys)
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "ferrum-local",
            "version": __version__,
            "description": "A local AI server with OpenAI's API.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _doc_of(app: Flask, rule: Rule) -> RouteDoc:
    """The view's own description; routes that a host program added may have none."""
    view = app.view_functions[rule.endpoint]
    doc = getattr(view, DOC_ATTRIBUTE, None)
    if isinstance(doc, RouteDoc):
        return doc
    summary = (view.__doc__ or rule.endpoint).strip().splitlines()[0]
    return RouteDoc(summary, tag="other")


def _body_types(docs: Iterable[RouteDoc]) -> list[Any]:
    found: dict[str, Any] = {_key(ErrorBody): ErrorBody}
    for doc in docs:
        for type_ in (doc.request, *_options(doc.response), doc.stream, *doc.other.values()):
            if type_ is not None:
                found.setdefault(_key(type_), type_)
    return list(found.values())


def _options(response: Any) -> tuple[Any, ...]:
    """A view may answer with one of several structs, given as a tuple."""
    return response if isinstance(response, tuple) else (response,)


def _key(type_: Any) -> str:
    return repr(type_)


def _operation(
    rule: Rule, method: str, doc: RouteDoc, schema_of: Mapping[str, Json], *, with_keys: bool
) -> Json:
    operation: Json = {
        "operationId": f"{rule.endpoint.replace('.', '_')}_{method.lower()}",
        "summary": doc.summary,
        "tags": [doc.tag],
        "responses": _responses(method, doc, schema_of),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in PATH_PARAMETER.findall(rule.rule)
    ]
    if parameters:
        operation["parameters"] = parameters
    if doc.request is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {doc.request_media: {"schema": schema_of[_key(doc.request)]}},
        }
    if with_keys and rule.rule not in OPEN_ROUTES:
        operation["security"] = [{"key": []}]
    return operation


def _responses(method: str, doc: RouteDoc, schema_of: Mapping[str, Json]) -> Json:
    responses: Json = {"200": {"description": "OK"}}
    content: Json = {}
    if doc.response is str:
        content["text/plain"] = {"schema": schema_of[_key(str)]}
    elif doc.response is not None:
        schemas = [schema_of[_key(type_)] for type_ in _options(doc.response)]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        content["application/json"] = {"schema": schema}
    for media_type in doc.binary:
        content[media_type] = {"schema": {"type": "string"}}
    if doc.stream is not None:
        content["text/event-stream"] = {"schema": _event_schema(doc.stream, schema_of)}
    if content:
        responses["200"]["content"] = content
    for status, description in (GET_ERRORS if method == "GET" else POST_ERRORS).items():
        responses[str(status)] = _error_response(status, description, ErrorBody, schema_of)
    for status, body in doc.other.items():
        description = POST_ERRORS.get(status, "See the body.")
        responses[str(status)] = _error_response(status, description, body, schema_of)
    return responses


def _event_schema(body: Any, schema_of: Mapping[str, Json]) -> Json:
    """One server-sent event; OpenAPI before 3.2 has no way to describe a whole stream."""
    payload = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [schema_of[_key(body)], schema_of[_key(ErrorBody)]]},
    }
    return {
        "type": "object",
        "description": "One event of many. The last one has the data [DONE], or an error.",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, payload]}},
        "required": ["data"],
    }


def _error_response(
    status: int, description: str, body: Any, schema_of: Mapping[str, Json]
) -> Json:
    response: Json = {
        "description": description,
        "content": {"application/json": {"schema": schema_of[_key(body)]}},
    }
    if status in RETRY_LATER:
        response["headers"] = {
            "Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}}
        }
    return response
