"""``POST /v1/chat/completions``: the request, the answer and the stream's chunks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ferrum_local.http.openai.schemas.audio import VoiceReference
from ferrum_local.http.openai.schemas.common import GenerationFields, TimingsBody, UsageBody
from ferrum_local.http.openai.schemas.tools import (
    AnsweredToolCall,
    CalledFunction,
    FunctionDefinition,
    FunctionDelta,
    NamedFunction,
    ToolCallChunk,
    ToolChoice,
    ToolDefinition,
)

FinishReasonName = Literal["stop", "length", "tool_calls", "function_call"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class InputAudio(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A recording in base64. ``pcm16`` is 16 bits, mono, 24 kHz; the others tell what they are
    themselves, and ``format`` has no effect."""

    noun: ClassVar[str] = "recording"

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "webm", "m4a", "aac", "pcm16"]


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One part of a message. Recordings are written down first; images and files are refused."""

    noun: ClassVar[str] = "part"

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    input_audio: InputAudio | None = None
    file: dict[str, Any] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``arguments`` is JSON text, as the model wrote it. ``parsed_arguments`` is what OpenAI's
    client adds of its own and sends back; it has no effect."""

    noun: ClassVar[str] = "function call"

    name: str
    arguments: str
    parsed_arguments: Any = None


class ToolCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "tool call"

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class EarlierAudio(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer in audio that an assistant's message gave. Only ``id`` is needed; ``transcript``
    serves where the server has forgotten it."""

    noun: ClassVar[str] = "object"

    id: str
    transcript: str | None = None
    data: str | None = None
    expires_at: int | None = None


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of the conversation; answers sent back as they came are valid, also with
    ``parsed``, which OpenAI's client adds of its own."""

    noun: ClassVar[str] = "message"

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None | UnsetType = UNSET
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[dict[str, Any]] | None = None
    audio: EarlierAudio | None = None
    parsed: Any = None


class Prediction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Text that the answer is likely to repeat; it makes the answer faster, not different."""

    noun: ClassVar[str] = "prediction"

    type: Literal["content"]
    content: str | list[ContentPart]


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None  # where llama.cpp's server has it


class AudioParam(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How an answer is to sound. ``pcm16`` is 16 bits, mono, 24 kHz."""

    noun: ClassVar[str] = "object"

    voice: str | VoiceReference
    format: Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]


class ChatCompletionRequest(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """A chat completion. Without ``max_tokens`` the answer may fill the context."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=-1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None

    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None

    reasoning_effort: ReasoningEffort | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    reasoning_budget_tokens: Annotated[int, Meta(ge=-1)] | None = None
    thinking_budget_tokens: Annotated[int, Meta(ge=-1)] | None = None

    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioParam | None = None

    # Known to OpenAI; values that would change the answer are refused in this version.
    web_search_options: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    verbosity: str | None = None


class ChatTopLogprob(msgspec.Struct, kw_only=True, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class ChatTokenLogprob(msgspec.Struct, kw_only=True, frozen=True):
    """``token`` is ``bytes`` as text, with U+FFFD where a character is not complete."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class SpokenAudio(msgspec.Struct, kw_only=True, frozen=True):
    """``data`` in base64. ``expires_at``, in seconds since the epoch: until then a message with
    ``id`` alone stands for ``transcript``."""

    id: str
    data: str
    expires_at: int
    transcript: str


class ResponseMessage(msgspec.Struct, kw_only=True, frozen=True):
    """``content`` is null where the answer is spoken, or calls alone."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    audio: SpokenAudio | UnsetType = UNSET
    tool_calls: list[AnsweredToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True, frozen=True):
    index: int
    message: ResponseMessage
    finish_reason: FinishReasonName
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    timings: TimingsBody


class SpokenAudioDelta(msgspec.Struct, kw_only=True, frozen=True):
    """Besides ``id`` one of the others; ``data`` is base64 of whole samples, ``expires_at`` the
    last."""

    id: str
    transcript: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    audio: SpokenAudioDelta | UnsetType = UNSET
    tool_calls: list[ToolCallChunk] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReasonName | None = None


class ChatChunk(msgspec.Struct, kw_only=True, frozen=True):
    """One event of the stream. ``usage`` is a key only when the client asked for it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | None | UnsetType = UNSET
    timings: TimingsBody | UnsetType = UNSET
