"""``GET /v1/models``: what is loaded, whatever kind of model it is."""

from __future__ import annotations

from typing import Literal

import msgspec
from flask import Blueprint, Response

from ferrum_local.engine.contracts import ModelInfo
from ferrum_local.errors import ModelNotFound
from ferrum_local.http.bodies import json_response
from ferrum_local.http.openapi import documented
from ferrum_local.http.state import state

blueprint = Blueprint("models", __name__)

OWNED_BY = "ferrum-local"


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's model object, and what a client may want to know before it asks.

    ``created`` is the file's time in seconds since the epoch. ``state``: loading, ready, failed.
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


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelObject]


@blueprint.get("/v1/models")
@documented(summary="List the models of this server", response=ModelList)
def list_models() -> Response:
    return json_response(ModelList(data=[_object(m) for m in state().engine.status().models]))


@blueprint.get("/v1/models/<path:model_id>")
@documented(summary="Describe one model, by id or alias", response=ModelObject)
def get_model(model_id: str) -> Response:
    """Ids may contain slashes, as Hugging Face's do."""
    models = state().engine.status().models
    for model in models:
        if model_id == model.id:
            return json_response(_object(model))
    for model in models:
        if model_id in model.aliases:
            return json_response(_object(model))
    known = [model.id for model in models]
    raise ModelNotFound(
        f"No model {model_id[:200]!r} here. Known models: {', '.join(known) or 'none'}.",
        known_ids=known,
    )


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
    )
