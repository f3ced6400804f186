"""``POST /v1/completions``: the request, the answer and the stream's chunks."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ferrum_local.http.openai.schemas.chat import FinishReasonName, ResponseFormat
from ferrum_local.http.openai.schemas.common import GenerationFields, TimingsBody, UsageBody


class CompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """A text completion. ``max_tokens`` is 16 unless given, as OpenAI documents.

    ``prompt`` is a text, a list of texts, a list of token ids or a list of such lists.
    """

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=8)] | None = None
    response_format: ResponseFormat | None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True, frozen=True):
    """OpenAI's older shape: four lists, one entry a token.

    ``text_offset`` counts characters from the start of the choice's text. The first
    token of a prompt has no log-probability: null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True, frozen=True):
    index: int
    text: str
    finish_reason: FinishReasonName
    logprobs: CompletionLogprobs | None = None


class Completion(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody
    timings: TimingsBody


class CompletionChunkChoice(msgspec.Struct, kw_only=True, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReasonName | None = None


class CompletionChunk(msgspec.Struct, kw_only=True, frozen=True):
    """One event of the stream. ``usage`` is a key only when the client asked for it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: UsageBody | None | UnsetType = UNSET
    timings: TimingsBody | UnsetType = UNSET
