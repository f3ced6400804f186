"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import sys
from array import array

from flask import Blueprint, Response
from msgspec import UNSET

from ferrum_local.http.bodies import json_response, read_json_body
from ferrum_local.http.images import ImageSource
from ferrum_local.http.openai.schemas.embeddings import (
    EmbeddingItem,
    EmbeddingList,
    EmbeddingObject,
    EmbeddingsRequest,
    PromptUsage,
)
from ferrum_local.http.openai.validation import invalid, json_type, parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.scoring import ScoringCall, admitted, run
from ferrum_local.http.state import state
from ferrum_local.types import EmbeddingRequest, ImageInput, InputType, TokenIds

MAX_INPUTS = 2048  # as OpenAI

Input = str | TokenIds | ImageInput

blueprint = Blueprint("openai_embeddings", __name__)


@blueprint.post("/v1/embeddings")
@documented(
    summary="Turn texts or images into vectors", request=EmbeddingsRequest, response=EmbeddingList
)
def create_embeddings() -> Response:
    fields = parse_request(read_json_body(), EmbeddingsRequest)
    kind = "image-embedding" if has_images(fields) else "embedding"
    call = ScoringCall.of_current_request("embd", fields.model, kind, keep_alive=fields.keep_alive)
    # Images may come from slow hosts: only for a call that has a model, and a place.
    with admitted(call) as is_gone:
        request = EmbeddingRequest(
            id=call.id,
            model_id=call.model_id,
            inputs=inputs_of(fields, state().images(is_gone)),
            input_type=input_type_of(fields.input_type),
            dimensions=fields.dimensions,
            truncate=bool(fields.truncate),
            is_crowded=call.is_crowded,
            created_at=call.created_at,
            deadline_s=call.deadline_s,
            metadata=call.metadata,
        )
        response = run(call, lambda: state().engine.embed(request, is_abandoned=is_gone))
    encode = encode_base64 if fields.encoding_format == "base64" else array.tolist
    return json_response(
        EmbeddingList(
            data=[
                EmbeddingObject(
                    index=i,
                    embedding=encode(vector),
                    truncated=True if i in response.truncated else UNSET,
                )
                for i, vector in enumerate(response.vectors)
            ],
            model=response.model_id,
            usage=PromptUsage(
                prompt_tokens=response.prompt_tokens, total_tokens=response.prompt_tokens
            ),
        )
    )


def has_images(fields: EmbeddingsRequest) -> bool:
    items = fields.input if isinstance(fields.input, list) else [fields.input]
    return any(isinstance(item, EmbeddingItem) and item.image is not None for item in items)


def inputs_of(fields: EmbeddingsRequest, images: ImageSource) -> tuple[Input, ...]:
    """The inputs one by one, whichever of its forms ``input`` has.

    :raises ApiError: 400 that names the input which is empty, of another form than the first,
        not an image, or one too many.
    """
    given = fields.input
    if isinstance(given, (str, EmbeddingItem)):
        return (_input(given, "input", images),)
    first = given[0]
    for i, item in enumerate(given):
        if type(item) is not type(first):
            raise invalid(
                f"input[{i}]", f"expected {json_type(first)} as before, got {json_type(item)}"
            )
    if isinstance(first, int):
        return (_input([i for i in given if isinstance(i, int)], "input", images),)
    if len(given) > MAX_INPUTS:
        raise invalid("input", f"expected at most {MAX_INPUTS} inputs, got {len(given)}")
    return tuple(
        _input(item, f"input[{i}]", images)
        for i, item in enumerate(given)
        if not isinstance(item, int)
    )


def _input(item: str | EmbeddingItem | list[int], path: str, images: ImageSource) -> Input:
    if isinstance(item, str):
        if not item:
            raise invalid(path, "expected a text, got an empty string")
        return item
    if isinstance(item, EmbeddingItem):
        if (item.text is None) == (item.image is None):
            raise invalid(path, "expected an object with either text or image")
        if item.text is not None:
            return _input(item.text, f"{path}.text", images)
        return ImageInput(images.read(item.image or "", f"{path}.image"))
    if not item:
        raise invalid(path, "expected token ids, got an empty list")
    return tuple(item)


def input_type_of(name: str | None) -> InputType | None:
    """Cohere's names mean the same."""
    if name is None:
        return None
    return "query" if name.endswith("query") else "document"


def encode_base64(vector: array[float]) -> str:
    """Little-endian float32, as OpenAI's clients read it."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
