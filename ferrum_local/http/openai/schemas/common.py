"""Fields that chat and text completions share: sampling, streaming, usage, timings."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX = 2**31 - 1
"""llama.cpp counts tokens in 32 bits."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``include_obfuscation`` is accepted; no padding is ever sent."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GrammarObject(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A grammar that says of what sort it is."""

    noun: ClassVar[str] = "grammar object"

    type: Literal["gbnf", "lark", "regex", "json", "json_schema"]
    value: str | dict[str, Any]


Choices = Annotated[list[str], Meta(min_length=1, max_length=1000)]


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's way to write a constraint: one of these."""

    noun: ClassVar[str] = "object"

    json: dict[str, Any] | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | GrammarObject | None = None
    json_object: bool | None = None


class LoraScale(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """llama.cpp's: an adapter by its place among the server's, and how strongly it is on."""

    noun: ClassVar[str] = "object"

    id: Annotated[int, Meta(ge=0)]
    scale: float


class GenerationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both generation routes take: OpenAI's fields, then llama.cpp's."""

    noun: ClassVar[str] = "object"

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=-1)] | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None

    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=100)] | None = None
    xtc_probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Annotated[float, Meta(gt=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(gt=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    ignore_eos: bool | None = None
    keep_alive: str | float | None = None  # Ollama's: how long the model stays loaded
    lora: list[LoraScale] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None

    # What the answer must match; at most one. llama.cpp's and vLLM's names.
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | GrammarObject | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | GrammarObject | None = None
    structured_outputs: StructuredOutputs | None = None

    # OpenAI's account-side fields: accepted, without effect on the answer.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


class PromptTokensDetails(msgspec.Struct, kw_only=True, frozen=True):
    cached_tokens: int = 0
    audio_tokens: int | UnsetType = UNSET


class CompletionTokensDetails(msgspec.Struct, kw_only=True, frozen=True):
    reasoning_tokens: int = 0
    audio_tokens: int | UnsetType = UNSET


class UsageBody(msgspec.Struct, kw_only=True, frozen=True):
    """OpenAI's ``usage``; counts come from the tokenizer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TimingsBody(msgspec.Struct, kw_only=True, frozen=True):
    """llama.cpp's ``timings``, with the wait in the queue and the time to the first token."""

    queue_ms: float
    ttft_ms: float | None
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
