"""``POST /v1/embeddings``: the request and the reply."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


class EmbeddingItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text or an image: one of both. ``image``: a data URL or base64."""

    noun: ClassVar[str] = "object"

    text: str | None = None
    image: str | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts, token ids or images to turn into vectors.

    ``input`` is a text, a list of texts, a list of token ids, a list of such lists, or objects
    (one or a list). ``truncate``: cut what is too long instead of refusing it; the reply marks
    what was cut. ``input_type`` puts the model's own prefix for queries or documents first.
    ``keep_alive``: how long the model stays loaded, in Ollama's form.
    """

    input: (
        str
        | EmbeddingItem
        | Annotated[list[str | int | list[int] | EmbeddingItem], Meta(min_length=1)]
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    input_type: Literal["query", "document", "search_query", "search_document"] | None = None
    truncate: bool | None = None
    keep_alive: str | float | None = None
    user: str | None = None


class EmbeddingObject(msgspec.Struct, kw_only=True, frozen=True):
    """``embedding`` is a list of numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool | UnsetType = UNSET


class PromptUsage(msgspec.Struct, kw_only=True, frozen=True):
    """Tokens that were read; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: PromptUsage
