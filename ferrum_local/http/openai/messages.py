"""A conversation as clients send it → as the model's chat template takes it.

Roles become system, user, assistant and tool; content becomes text. Which orders of
roles a template accepts is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.schemas import ChatMessage, ContentPart, FunctionCall
from ferrum_local.http.openai.validation import invalid, unsupported

ROLE_OF_TEMPLATE = {"developer": "system", "function": "tool"}
BETWEEN_PARTS = "\n"  # as llama.cpp and vLLM join them: two texts stay two texts

REFUSED_PARTS = {
    "image_url": "image input not supported by this model",
    "input_audio": "audio input not supported by this model",
    "file": "file input not supported by this model",
}


def normalise(messages: Sequence[ChatMessage]) -> tuple[dict[str, Any], ...]:
    """One dict a message, with ``role``, ``content`` (a string, or None beside tool calls) and
    whichever of ``name``, ``tool_calls``, ``tool_call_id`` and ``reasoning_content`` came.
    Audio has become text before.

    :raises ApiError: 400 naming the message and what about it cannot be.
    """
    return tuple(_normalised(message, f"messages[{i}]") for i, message in enumerate(messages))


def _normalised(message: ChatMessage, path: str) -> dict[str, Any]:
    _check_role_fields(message, path)
    calls = _tool_calls(message)
    content = _text(message, path)
    result: dict[str, Any] = {
        "role": ROLE_OF_TEMPLATE.get(message.role, message.role),
        # Templates tell a call without words by `content is none`; elsewhere None would be printed.
        "content": content if content is not None or calls else "",
    }
    if message.name is not None:
        result["name"] = message.name
    if calls:
        result["tool_calls"] = calls
    if message.role == "function":
        result["tool_call_id"] = _legacy_call_id(message.name or "")
    elif message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        result["reasoning_content"] = message.reasoning_content
    return result


def _check_role_fields(message: ChatMessage, path: str) -> None:
    if message.role != "assistant" and message.content is UNSET:
        raise _missing(f"{path}.content", message.role)
    if message.role == "tool" and message.tool_call_id is None:
        raise _missing(f"{path}.tool_call_id", "tool")
    if message.role == "function" and message.name is None:
        raise _missing(f"{path}.name", "function")
    if message.role != "assistant":
        for field in ("tool_calls", "function_call", "refusal", "reasoning_content", "audio"):
            if getattr(message, field):
                raise invalid(f"{path}.{field}", "only messages of role assistant have it")
    if message.role != "tool" and message.tool_call_id is not None:
        raise invalid(f"{path}.tool_call_id", "only messages of role tool have it")


def _missing(path: str, role: str) -> ApiError:
    return invalid(path, f"required in a message of role {role}", code="missing_required_parameter")


def _text(message: ChatMessage, path: str) -> str | None:
    if isinstance(message.content, list):
        return joined_text(message.content, f"{path}.content")
    if message.content is None or message.content is UNSET:
        return message.refusal  # an answer that was a refusal has its words there
    return message.content


def joined_text(content: str | list[ContentPart], path: str) -> str:
    """The text of a content field in either of its forms.

    :raises ApiError: 400 for a part that is not text, naming it by ``path``.
    """
    if isinstance(content, str):
        return content
    return BETWEEN_PARTS.join(_part_text(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part_text(part: ContentPart, path: str) -> str:
    if part.type in REFUSED_PARTS:
        raise unsupported(path, REFUSED_PARTS[part.type])
    field = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, field)
    if text is None:
        raise invalid(
            f"{path}.{field}",
            f"required in a part of type {part.type}",
            code="missing_required_parameter",
        )
    return text


def _tool_calls(message: ChatMessage) -> list[dict[str, Any]]:
    calls = [_call(call.function, call.id) for call in message.tool_calls or ()]
    if message.function_call is not None:
        name = message.function_call.name
        calls.append(_call(message.function_call, _legacy_call_id(name)))
    return calls


def _call(function: FunctionCall, call_id: str | None) -> dict[str, Any]:
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": function.name, "arguments": function.arguments},
    }
    if call_id is not None:
        call["id"] = call_id
    return call


def _legacy_call_id(name: str) -> str:
    """``function_call`` and its ``function`` answer have no id; the name ties them together."""
    return f"call_{name}"
