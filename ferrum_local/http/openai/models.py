"""``/v1/models``: what can be asked for, of whatever kind; loaded and unloaded on demand."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from flask import Blueprint, Response
from flask.blueprints import BlueprintSetupState
from msgspec import Meta
from werkzeug.routing import PathConverter

from ferrum_local.engine.contracts import ModelInfo
from ferrum_local.errors import ModelNotFound
from ferrum_local.http.bodies import json_response, read_json_body
from ferrum_local.http.model_use import keep_alive_seconds, model_in_use
from ferrum_local.http.openai.call import request_deadline_s
from ferrum_local.http.openai.validation import parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import state

blueprint = Blueprint("models", __name__)

OWNED_BY = "ferrum-local"


class ModelIdConverter(PathConverter):
    """A model's id in a route; not the name of another route here, which takes no GET."""

    regex = r"(?!(?:load|unload)$)[^/].*?"


@blueprint.record_once
def _add_converter(setup: BlueprintSetupState) -> None:
    setup.app.url_map.converters["model_id"] = ModelIdConverter


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object, and what a client may want to know before it asks.

    ``created`` is the file's time in seconds since the epoch. ``state``: unloaded (it is loaded
    when it is asked for), loading, ready, unloading, failed (``error`` says why; asking tries
    again). ``progress``: percent loaded, while loading. ``expires_in_s``: seconds until it is
    unloaded if nobody asks it; null: it stays.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    capabilities: list[str]
    context_length: int
    state: str
    size_bytes: int
    aliases: list[str]
    progress: int | None = None
    expires_in_s: float | None = None
    quantization: str | None = None
    license: str | None = None
    error: str | None = None


class ModelUse(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A model by id or alias. ``keep_alive``: how long it stays loaded if nobody asks it."""

    noun: ClassVar[str] = "object"

    model: Annotated[str, Meta(min_length=1)]
    keep_alive: str | float | None = None


class ModelName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "object"

    model: Annotated[str, Meta(min_length=1)]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelObject]


@blueprint.get("/v1/models")
@documented(summary="List the models of this server", response=ModelList)
def list_models() -> Response:
    return json_response(ModelList(data=[_object(m) for m in state().engine.known_models()]))


@blueprint.get("/v1/models/<model_id:model_id>")
@documented(summary="Describe one model, by id or alias", response=ModelObject)
def get_model(model_id: str) -> Response:
    """Ids may contain slashes, as Hugging Face's do."""
    models = state().engine.known_models()
    for model in models:
        if model_id == model.id:
            return json_response(_object(model))
    for model in models:
        if model_id in model.aliases:
            return json_response(_object(model))
    known = [model.id for model in models]
    raise ModelNotFound(
        f"No model {model_id[:200]!r} here. Known: {', '.join(known) or 'none'}.",
        known_ids=known,
    )


@blueprint.post("/v1/models/load")
@documented(summary="Load a model, and wait for it", request=ModelUse, response=ModelObject)
def load_model() -> Response:
    """A client that leaves no longer waits; a load that has begun goes on."""
    fields = parse_request(read_json_body(), ModelUse)
    app = state()
    model_id = _resolve(fields.model)
    keep_alive_s = keep_alive_seconds(fields.keep_alive)
    deadline_s = request_deadline_s(app.config)
    with (
        app.gate.admit(),
        model_in_use(model_id, deadline_s=deadline_s, keep_alive_s=keep_alive_s),
    ):
        info = app.engine.resolve_model(model_id, None)
    return json_response(_object(info))


@blueprint.post("/v1/models/unload")
@documented(
    summary="Free a model's memory, at once or when its requests are done",
    request=ModelName,
    response=ModelObject,
    other={202: ModelObject},
)
def unload_model() -> Response:
    """202: it goes when the requests that use it, or another model's load, are done; ``state``
    is ``unloading``. The next request for it loads it again."""
    fields = parse_request(read_json_body(), ModelName)
    info = state().engine.unload_model(_resolve(fields.model))
    return json_response(_object(info), status=202 if info.state == "unloading" else 200)


def _resolve(name: str) -> str:
    model_id = state().engine.resolve_model(name, None).id
    current_record().model = model_id
    return model_id


def _object(model: ModelInfo) -> ModelObject:
    return ModelObject(
        id=model.id,
        created=model.created,
        owned_by=OWNED_BY,
        capabilities=list(model.capabilities),
        context_length=model.context_length,
        state=model.state,
        size_bytes=model.size_bytes,
        aliases=list(model.aliases),
        progress=model.progress,
        expires_in_s=model.expires_in_s,
        quantization=model.quantization,
        license=model.license,
        error=model.error,
    )
