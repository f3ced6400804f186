"""Templates and tokens: llama.cpp's routes and OpenAI's count. Nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from flask import Blueprint, Response
from msgspec import Meta

from ferrum_local.engine.contracts import Engine
from ferrum_local.errors import InvalidRequest
from ferrum_local.http.bodies import json_response, read_json_body
from ferrum_local.http.model_use import model_in_use
from ferrum_local.http.openai.call import request_deadline_s, resolve_model
from ferrum_local.http.openai.chat import chat_prompt
from ferrum_local.http.openai.schemas import ChatCompletionRequest
from ferrum_local.http.openai.schemas.common import INT32_MAX
from ferrum_local.http.openai.validation import invalid, parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import state

MAX_CHARS = 1_000_000  # a token id counts as one
MAX_TOKENS = 1_000_000

blueprint = Blueprint("tokens", __name__)

Token = Annotated[int, Meta(ge=0, le=INT32_MAX)]


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``content`` is text, or a list of texts and token ids, which stay as they are."""

    noun: ClassVar[str] = "object"

    content: str | list[str | Token]
    model: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """``piece`` is text, or a list of bytes where it is only part of a character."""

    id: int
    piece: str | list[int]


class TokenizedText(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``tokens`` are ids, or, if pieces were asked for, none is."""

    tokens: list[int | TokenPiece]


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "object"

    tokens: Annotated[list[Token], Meta(max_length=MAX_TOKENS)]
    model: str | None = None


class DetokenizedText(msgspec.Struct, frozen=True, kw_only=True):
    content: str


@blueprint.post("/apply-template")
@documented(
    summary="Show the prompt that a conversation becomes",
    request=ChatCompletionRequest,
    response=RenderedPrompt,
    tag="tokens",
)
def apply_template() -> Response:
    """Takes what a chat completion takes; the fields that only concern the answer have no
    effect."""
    fields = parse_request(read_json_body(), ChatCompletionRequest)
    prompt = chat_prompt(fields)
    engine, model_id = _model(fields.model)
    return json_response(RenderedPrompt(prompt=engine.apply_template(prompt, model_id)))


@blueprint.post("/v1/chat/completions/input_tokens")
@documented(
    summary="Count the tokens of a conversation's prompt",
    request=ChatCompletionRequest,
    response=InputTokens,
)
def count_input_tokens() -> Response:
    """Takes what a chat completion takes, and says what its ``prompt_tokens`` would be."""
    fields = parse_request(read_json_body(), ChatCompletionRequest)
    prompt = chat_prompt(fields)
    engine, model_id = _model(fields.model)
    return json_response(InputTokens(input_tokens=engine.count_tokens(prompt, model_id)))


@blueprint.post("/tokenize")
@documented(
    summary="Turn text into token ids",
    request=TokenizeRequest,
    response=TokenizedText,
    tag="tokens",
)
def tokenize() -> Response:
    fields = parse_request(read_json_body(), TokenizeRequest)
    parts = [fields.content] if isinstance(fields.content, str) else fields.content
    if sum(len(part) if isinstance(part, str) else 1 for part in parts) > MAX_CHARS:
        raise invalid("content", f"expected at most {MAX_CHARS} characters")
    engine, model_id = _model(fields.model)
    _check_tokens(engine, model_id, parts)
    add_special = bool(fields.add_special)
    tokens: list[int] = []
    for part in parts:
        if isinstance(part, int):
            tokens.append(part)
            continue
        tokens += engine.tokenize(
            part,
            model_id,
            # One text begins once, whatever the number of its parts.
            add_special=add_special and not tokens,
            parse_special=fields.parse_special is not False,
        )
    if not fields.with_pieces:
        return json_response(TokenizedText(tokens=list(tokens)))
    pieces = engine.token_bytes(tuple(tokens), model_id)
    return json_response(
        TokenizedText(
            tokens=[
                TokenPiece(id=token, piece=_piece(data))
                for token, data in zip(tokens, pieces, strict=True)
            ]
        )
    )


def _check_tokens(engine: Engine, model_id: str, parts: Sequence[str | int]) -> None:
    """:raises ApiError: 400 that names the first id which is no token."""
    places = [i for i, part in enumerate(parts) if isinstance(part, int)]
    tokens = tuple(part for part in parts if isinstance(part, int))
    if not tokens:
        return
    try:
        engine.token_bytes(tokens, model_id)
    except InvalidRequest as error:
        param = error.param or ""
        place = places[int(param.removeprefix("tokens[").removesuffix("]"))]
        raise invalid(f"content[{place}]", error.message.removeprefix(f"{param}: ")) from error


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


@blueprint.post("/detokenize")
@documented(
    summary="Turn token ids into text",
    request=DetokenizeRequest,
    response=DetokenizedText,
    tag="tokens",
)
def detokenize() -> Response:
    fields = parse_request(read_json_body(), DetokenizeRequest)
    engine, model_id = _model(fields.model)
    pieces = engine.token_bytes(tuple(fields.tokens), model_id)
    return json_response(DetokenizedText(content=b"".join(pieces).decode("utf-8", "replace")))


def _model(name: str | None) -> tuple[Engine, str]:
    """The engine, and the id of the model that ``name`` means."""
    app = state()
    model_id = resolve_model(app.engine, name, app.config).id
    current_record().model = model_id
    with model_in_use(model_id, deadline_s=request_deadline_s(app.config)):
        pass  # the engine would wait for it as well, but not look whether the client left
    return app.engine, model_id
