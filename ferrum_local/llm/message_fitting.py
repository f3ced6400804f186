"""Bringing a conversation into a shape that a chat template accepts, without losing text.

Pure functions on lists of messages. None changes its input.

:class:`Dialect` says how this template wants messages written, for every conversation;
:class:`Fit` is one way to rearrange a conversation that the template refuses as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrum_local.errors import InvalidRequest

Message: TypeAlias = dict[str, Any]

SEPARATOR = "\n\n"  # between texts that are joined into one message
SHORT_ID_CHARS = 9  # Mistral's templates demand exactly this
MARKED_ARGUMENT = "zqargument"  # the argument that a marked tool call has

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MARK = re.compile(r"zq\d{5,}qz")
_SHORT_ID = re.compile(rf"[a-zA-Z0-9]{{{SHORT_ID_CHARS}}}")


@dataclass(frozen=True)
class Dialect:
    """How a template wants messages written; found out by probing it."""

    content_parts: bool = False  # content as [{"type": "text", "text": …}], not a string
    null_content: bool = True  # None beside tool calls; False: an empty string
    argument_text: bool = False  # tool arguments as JSON text, not as an object
    short_ids: bool = False  # tool call ids of exactly nine letters and digits
    calls_as_text: bool = False  # it leaves out tool calls: write them into the content
    results_as_user: bool = False  # it leaves out tool messages: let the user say them


@dataclass(frozen=True)
class Fit:
    """One way to rearrange a conversation. The default changes nothing."""

    system: str = "kept"  # "merged" into the first one, "folded" into the first user message
    joined: bool = False  # neighbours of the same role become one message
    user_first: bool = False  # an empty user message goes before a leading assistant
    tools_as_text: bool = False  # tool calls and results as text, as with both Dialect flags


# Least change first.
FITS = tuple(
    Fit(system=system, joined=joined, user_first=user_first, tools_as_text=tools_as_text)
    for tools_as_text in (False, True)
    for user_first in (False, True)
    for system in ("kept", "merged", "folded")
    for joined in (False, True)
)


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Bring OpenAI's variants of a message to one form.

    Afterwards a role is system, user, assistant or tool; content is a string, or None beside
    tool calls; tool calls have an id, tool messages name their call and function where that
    can be known; a field that is None is absent.

    :raises InvalidRequest: naming the field.
    """
    conversation: list[Message] = []
    open_calls: list[tuple[str, str]] = []  # (id, function name) still without a result
    for i, given in enumerate(messages):
        path = f"messages[{i}]"
        role = _ROLES.get(str(given.get("role")))
        if role is None:
            raise InvalidRequest(
                f"{path}.role: expected one of {', '.join(_ROLES)}, got {given.get('role')!r}",
                param=f"{path}.role",
            )
        message = {key: value for key, value in given.items() if value is not None}
        message["role"] = role
        calls = _tool_calls(message, f"call_{i}") if role == "assistant" else []
        message.pop("function_call", None)
        message.pop("tool_calls", None)
        content = _text(given.get("content"), f"{path}.content")
        message["content"] = content if content is not None or calls else ""
        if calls:
            message["tool_calls"] = calls
            open_calls = [(call["id"], call["function"]["name"]) for call in calls]
        if role == "tool":
            _link_to_call(message, open_calls)
        conversation.append(message)
    return conversation


def _text(content: object, path: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"{path}: expected a string or a list of parts", param=path)
    texts = []
    for j, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            raise InvalidRequest(f"{path}[{j}]: expected a text part", param=f"{path}[{j}]")
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(message: Message, id_prefix: str) -> list[dict[str, Any]]:
    """The calls of an assistant message, the older ``function_call`` among them."""
    given = list(message.get("tool_calls", ()))
    if not given and "function_call" in message:
        given = [{"function": message["function_call"]}]
    calls = []
    for j, call in enumerate(given):
        function = dict(call.get("function") or {})
        function.setdefault("name", "")
        function["arguments"] = function.get("arguments") or {}
        call_id = str(call.get("id") or f"{id_prefix}_{j}")
        calls.append({**call, "id": call_id, "type": "function", "function": function})
    return calls


def _link_to_call(message: Message, open_calls: list[tuple[str, str]]) -> None:
    """Give a tool message the id and name of the call that it answers, if it lacks them."""
    for k, (call_id, name) in enumerate(open_calls):
        if message.get("tool_call_id", call_id) == call_id and message.get("name", name) == name:
            message["tool_call_id"] = call_id
            message["name"] = name
            del open_calls[k]
            return


def arrange(messages: Sequence[Message], fit: Fit, dialect: Dialect) -> list[Message]:
    """``messages`` rearranged by ``fit`` and written in ``dialect``."""
    arranged = list(messages)
    if dialect.calls_as_text or fit.tools_as_text:
        arranged = [_with_calls_as_text(message) for message in arranged]
    if dialect.results_as_user or fit.tools_as_text:
        arranged = [_with_result_as_user(message) for message in arranged]
    if fit.user_first:
        arranged = _with_user_first(arranged)
    if fit.system == "merged":
        arranged = _with_systems_merged(arranged)
    elif fit.system == "folded":
        arranged = _with_system_folded(arranged)
    if fit.joined:
        arranged = _with_neighbours_joined(arranged)
    return [_in_dialect(message, dialect) for message in arranged]


def _join(*texts: str | None) -> str:
    return SEPARATOR.join(text for text in texts if text)


def _with_calls_as_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": _join(message["content"], *map(_call_text, message["tool_calls"]))}


def _call_text(call: Mapping[str, Any]) -> str:
    """A tool call the way that most small models have seen it (Hermes)."""
    function = call["function"]
    arguments = _argument_object(function["arguments"])
    body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _with_result_as_user(message: Message) -> Message:
    if message["role"] != "tool":
        return message
    label = f"Result of {message['name']}:\n" if message.get("name") else ""
    content = f"<tool_response>\n{label}{message['content']}\n</tool_response>"
    return {"role": "user", "content": content}


def _with_user_first(messages: list[Message]) -> list[Message]:
    n_system = next(
        (i for i, message in enumerate(messages) if message["role"] != "system"), len(messages)
    )
    if n_system < len(messages) and messages[n_system]["role"] == "user":
        return messages
    return [*messages[:n_system], {"role": "user", "content": ""}, *messages[n_system:]]


def _without_systems(messages: list[Message]) -> tuple[str, list[Message]]:
    """The text of all system messages, and the other messages."""
    systems = [message["content"] for message in messages if message["role"] == "system"]
    return _join(*systems), [message for message in messages if message["role"] != "system"]


def _with_systems_merged(messages: list[Message]) -> list[Message]:
    text, others = _without_systems(messages)
    return [{"role": "system", "content": text}, *others] if text else others


def _with_system_folded(messages: list[Message]) -> list[Message]:
    text, others = _without_systems(messages)
    if not text:
        return others
    for i, message in enumerate(others):
        if message["role"] == "user":
            folded = {**message, "content": _join(text, message["content"])}
            return [*others[:i], folded, *others[i + 1 :]]
    return [{"role": "user", "content": text}, *others]


def _with_neighbours_joined(messages: list[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is None or before["role"] != message["role"] or message["role"] == "tool":
            joined.append(message)
            continue
        both = {**before, **message, "content": _join(before["content"], message["content"])}
        calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
        if calls:
            both["tool_calls"] = calls
        joined[-1] = both
    return joined


def _in_dialect(message: Message, dialect: Dialect) -> Message:
    written = dict(message)
    if written["content"] is None and not dialect.null_content:
        written["content"] = ""
    if dialect.content_parts and written["content"] is not None:
        written["content"] = [{"type": "text", "text": written["content"]}]
    if dialect.short_ids and "tool_call_id" in written:
        written["tool_call_id"] = short_id(written["tool_call_id"])
    if "tool_calls" in written:
        written["tool_calls"] = [_call_in_dialect(call, dialect) for call in written["tool_calls"]]
    return written


def _call_in_dialect(call: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if not dialect.argument_text:
        arguments = _argument_object(arguments)
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    call_id = short_id(call["id"]) if dialect.short_ids else call["id"]
    return {**call, "id": call_id, "function": {**call["function"], "arguments": arguments}}


def _argument_object(arguments: object) -> object:
    """OpenAI's argument string as the object in it; as it is where it holds none."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def short_id(call_id: str) -> str:
    """``call_id`` as nine letters and digits; the same one gives the same every time."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:SHORT_ID_CHARS]


def marked(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """A copy with unique marks for text, and the marks that a rendering must show.

    It has the same shape: empty content stays empty, calls keep their number and the kind of
    their arguments. Content beside tool calls gets no mark: many models were trained to
    have none there, and their templates leave it out.
    """
    marks: list[str] = []

    def new_mark() -> str:
        marks.append(f"zq{len(marks):05d}qz")
        return marks[-1]

    def marked_call(call: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = new_mark(), _argument_object(call["function"]["arguments"])
        if isinstance(arguments, dict):
            arguments = {MARKED_ARGUMENT: new_mark()} if arguments else {}
        else:
            arguments = new_mark()
        return {**call, "function": {"name": name, "arguments": arguments}}

    def marked_message(message: Message) -> Message:
        if "tool_calls" in message:
            return {**message, "tool_calls": [marked_call(call) for call in message["tool_calls"]]}
        return {**message, "content": new_mark()} if message["content"] else message

    return [marked_message(message) for message in messages], marks


def n_lost(marks: Sequence[str], text: str) -> int:
    """How many of ``marks`` do not appear in ``text``."""
    return len(set(marks).difference(_MARK.findall(text)))
