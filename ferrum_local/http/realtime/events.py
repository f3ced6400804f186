"""What clients send: one JSON object a message, typed by its ``type``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.validation import invalid, parse_request, shown
from ferrum_local.http.realtime.items import ItemFields
from ferrum_local.http.realtime.settings import (
    AudioFormat,
    Modality,
    OutputTokens,
    Reasoning,
    Temperature,
    Tool,
    ToolChoice,
    VoiceId,
)


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``event_id`` is the client's own, for errors to name."""

    noun: ClassVar[str] = "event"

    type: str
    event_id: str | None = None


class SessionUpdate(ClientEvent, frozen=True):
    session: dict[str, Any]


class AudioAppend(ClientEvent, frozen=True):
    audio: str


class AudioCommit(ClientEvent, frozen=True):
    pass


class AudioClear(ClientEvent, frozen=True):
    pass


class ItemCreate(ClientEvent, frozen=True):
    item: ItemFields
    previous_item_id: str | None = None


class ItemRetrieve(ClientEvent, frozen=True):
    item_id: str


class ItemDelete(ClientEvent, frozen=True):
    item_id: str


class ItemTruncate(ClientEvent, frozen=True):
    item_id: str
    content_index: Annotated[int, Meta(ge=0)]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "object"

    format: AudioFormat | None = None
    voice: str | VoiceId | None = None


class ResponseAudio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "object"

    output: ResponseOutput | None = None


class ResponseFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one response has otherwise than the session. None: as the session."""

    noun: ClassVar[str] = "object"

    conversation: Literal["auto", "none"] = "auto"
    input: list[ItemFields] | None = None
    instructions: str | None = None
    output_modalities: Annotated[list[Modality], Meta(min_length=1)] | None = None
    modalities: Annotated[list[Modality], Meta(min_length=1)] | None = None  # its older name
    audio: ResponseAudio | None = None
    voice: str | None = None  # older
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: OutputTokens | None = None
    max_response_output_tokens: OutputTokens | None = None  # older
    temperature: Temperature | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    prompt: dict[str, Any] | None = None


class ResponseCreate(ClientEvent, frozen=True):
    response: ResponseFields | None = None


class ResponseCancel(ClientEvent, frozen=True):
    response_id: str | None = None


EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "input_audio_buffer.append": AudioAppend,
    "input_audio_buffer.commit": AudioCommit,
    "input_audio_buffer.clear": AudioClear,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.delete": ItemDelete,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}

Json: TypeAlias = dict[str, Any]


def decode(message: str) -> Json:
    """:raises ApiError: it is no JSON object."""
    try:
        body = msgspec.json.decode(message)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(f"The message is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError("The message: expected a JSON object", code="invalid_event")
    return body


def client_event_id(body: Json) -> str | None:
    event_id = body.get("event_id")
    return event_id if isinstance(event_id, str) else None


def parse(body: Json) -> ClientEvent:
    """:raises ApiError: no such event, or a field of it is wrong."""
    type_ = body.get("type")
    event_type = EVENTS.get(type_) if isinstance(type_, str) else None
    if event_type is None:
        raise invalid(
            "type",
            f"expected one of {', '.join(EVENTS)}, got {shown(type_)}",
            code="invalid_event_type",
        )
    return parse_request(body, event_type)
