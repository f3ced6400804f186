"""What one response shall be: the session's settings, with what ``response.create`` changes."""

from __future__ import annotations

from typing import Any

import msgspec

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.schemas import ChatCompletionRequest, FunctionDefinition
from ferrum_local.http.openai.schemas.tools import NamedFunction, ToolDefinition
from ferrum_local.http.openai.schemas.tools import ToolChoice as ChatToolChoice
from ferrum_local.http.openai.tools import ToolOptions, tool_options
from ferrum_local.http.openai.validation import invalid, unsupported
from ferrum_local.http.realtime.events import ResponseAudio, ResponseFields, ResponseOutput
from ferrum_local.http.realtime.items import Conversation, Item, ItemFields, item_from
from ferrum_local.http.realtime.settings import (
    AudioFormat,
    AudioOutput,
    SessionSettings,
    Tool,
    ToolChoice,
    Truncation,
    check_modalities,
    format_body,
    under,
)

DEFAULT_TEMPERATURE = 0.8  # OpenAI's for realtime
MAX_METADATA = 16


class ResponsePlan(msgspec.Struct, frozen=True, kw_only=True):
    """``items``: what the model is shown instead of the conversation; None: the conversation.

    ``retention_ratio``: how much of a conversation that is too long is kept; None: it fails.
    """

    in_conversation: bool
    modalities: list[str]
    instructions: str
    tools: ToolOptions
    max_tokens: int | None
    temperature: float
    effort: str | None
    voice: str | None
    speed: float
    format: AudioFormat
    retention_ratio: float | None
    items: tuple[Item, ...] | None = None
    metadata: dict[str, str] | None = None

    @property
    def speaks(self) -> bool:
        return "audio" in self.modalities

    def body(self) -> dict[str, Any]:
        """What a response object says of it."""
        return {
            "output_modalities": self.modalities,
            "max_output_tokens": self.max_tokens or "inf",
            "audio": {"output": {"format": format_body(self.format), "voice": self.voice}},
            "metadata": self.metadata,
        }


def make_plan(
    settings: SessionSettings, fields: ResponseFields | None, conversation: Conversation
) -> ResponsePlan:
    """:raises ApiError: naming the field of ``response`` at fault."""
    given = fields or ResponseFields()
    try:
        return _plan(settings, given, conversation)
    except ApiError as error:
        raise under("response", error) from error


def _plan(
    settings: SessionSettings, given: ResponseFields, conversation: Conversation
) -> ResponsePlan:
    if given.prompt is not None:
        raise unsupported("prompt", "stored prompts are not supported; expected null")
    if given.metadata is not None and len(given.metadata) > MAX_METADATA:
        raise invalid("metadata", f"expected at most {MAX_METADATA} pairs")
    output = (given.audio or ResponseAudio()).output or ResponseOutput()
    voice = AudioOutput(voice=output.voice or given.voice or settings.audio.output.voice)
    max_tokens = _first(
        given.max_output_tokens, given.max_response_output_tokens, settings.max_output_tokens
    )
    reasoning = given.reasoning or settings.reasoning
    return ResponsePlan(
        in_conversation=given.conversation != "none",
        modalities=_modalities(given, settings),
        instructions=_first(given.instructions, settings.instructions),
        tools=_tools(
            _first(given.tools, settings.tools),
            _first(given.tool_choice, settings.tool_choice),
            _first(given.parallel_tool_calls, settings.parallel_tool_calls, None),
        ),
        max_tokens=None if max_tokens == "inf" else max_tokens,
        temperature=_first(given.temperature, settings.temperature, DEFAULT_TEMPERATURE),
        effort=reasoning.effort if reasoning else None,
        voice=voice.voice_name,
        speed=settings.audio.output.speed,
        format=output.format or settings.audio.output.format,
        retention_ratio=_retention_ratio(settings),
        items=None if given.input is None else _items(given.input, conversation),
        metadata=given.metadata,
    )


def _first(*values: Any) -> Any:
    """The first that is set; else the last."""
    return next((value for value in values if value is not None), values[-1])


def _modalities(given: ResponseFields, settings: SessionSettings) -> list[str]:
    if given.output_modalities is not None:
        check_modalities(given.output_modalities)
        return list(given.output_modalities)
    if given.modalities is not None:  # audio came with its text, and both were named
        return ["audio"] if "audio" in given.modalities else ["text"]
    return list(settings.output_modalities)


def _retention_ratio(settings: SessionSettings) -> float | None:
    if isinstance(settings.truncation, Truncation):
        return settings.truncation.retention_ratio
    return Truncation().retention_ratio if settings.truncation == "auto" else None


def _items(given: list[ItemFields], conversation: Conversation) -> tuple[Item, ...]:
    items = []
    for i, fields in enumerate(given):
        path = f"input[{i}]"
        if fields.type == "item_reference":
            items.append(conversation.get(fields.id or "", f"{path}.id"))
            continue
        item, to_hear = item_from(fields, path)
        if to_hear:
            raise unsupported(
                f"{path}.content[{to_hear[0][0]}]",
                "audio is possible in items of the conversation only; add it there, and name it "
                "here by item_reference",
            )
        items.append(item)
    return tuple(items)


def check_tools(settings: SessionSettings) -> None:
    """:raises ApiError: naming the field of ``session`` at fault."""
    try:
        _tools(settings.tools, settings.tool_choice, None)
    except ApiError as error:
        raise under("session", error) from error


def _tools(tools: list[Tool], choice: ToolChoice, parallel: bool | None) -> ToolOptions:
    """The same rules as for chat completions, whose tools are one level deeper."""
    request = ChatCompletionRequest(
        messages=[],
        tools=[
            ToolDefinition(
                type="function",
                function=FunctionDefinition(
                    name=tool.name, description=tool.description, parameters=tool.parameters
                ),
            )
            for tool in tools
        ],
        tool_choice=choice
        if isinstance(choice, str)
        else ChatToolChoice(type="function", function=NamedFunction(name=choice.name)),
        parallel_tool_calls=parallel,
    )
    try:
        return tool_options(request)
    except ApiError as error:
        param = (error.param or "tools").replace(".function", "", 1)
        message = error.message.replace(".function", "", 1)
        raise ApiError(message, param=param, code=error.code) from error
