"""The items of a conversation: what was said by whom, calls of functions and their results."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from ferrum_local.http.openai.validation import invalid, shown, unsupported
from ferrum_local.http.realtime.playback import SpokenItem

ROOT = "root"  # as a previous_item_id: before all others
_ID_CHARS = 64
_CONTENT_OF_ROLE = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio"),
    "assistant": ("output_text", "output_audio"),
}
_OLD_CONTENT = {"text": "output_text", "audio": "output_audio"}  # of the assistant's
_TEXT_FIELD = {"input_text": "text", "output_text": "text", "output_audio": "transcript"}


class ContentFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a message as clients send it."""

    noun: ClassVar[str] = "content part"

    type: Literal[
        "input_text", "input_audio", "input_image", "output_text", "output_audio", "text", "audio"
    ]
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: str | None = None


class ItemFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item as clients send it; ``type`` says which fields count."""

    noun: ClassVar[str] = "item"

    type: Literal["message", "function_call", "function_call_output", "item_reference"]
    id: str | None = None
    object: str | None = None
    status: str | None = None
    role: Literal["system", "user", "assistant"] | None = None
    content: list[ContentFields] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


@dataclass(eq=False)
class Content:
    """``text`` is what counts for the model, whichever way it came. None: not known yet.

    ``audio``: what a user said, 16-bit samples at 16 kHz.
    """

    type: str
    text: str | None = ""
    audio: bytes = b""


@dataclass(eq=False)
class Item:
    """``spoken`` tells which words of an answer are heard when; ``heard`` is what counts of it
    after an interruption."""

    type: str
    id: str
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    role: str | None = None
    content: list[Content] = field(default_factory=list)
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""
    output: str = ""
    spoken: SpokenItem | None = None
    heard: str | None = None

    @property
    def text(self) -> str:
        """All that was said in it, as the model is told."""
        if self.heard is not None:
            return self.heard
        return "\n".join(part.text for part in self.content if part.text)

    def body(self) -> dict[str, Any]:
        about = {"id": self.id, "object": "realtime.item", "type": self.type}
        if self.type == "function_call":
            return {
                **about,
                "status": self.status,
                "name": self.name,
                "call_id": self.call_id,
                "arguments": self.arguments,
            }
        if self.type == "function_call_output":
            return {**about, "status": self.status, "call_id": self.call_id, "output": self.output}
        return {
            **about,
            "status": self.status,
            "role": self.role,
            "content": [self._content_body(part) for part in self.content],
        }

    def _content_body(self, part: Content) -> dict[str, Any]:
        if part.type in ("input_audio", "output_audio"):
            text = self.heard if self.heard is not None else part.text
            return {"type": part.type, "transcript": text}
        return {"type": part.type, "text": part.text}


def new_item_id() -> str:
    return f"item_{secrets.token_hex(8)}"


def item_from(fields: ItemFields, path: str) -> tuple[Item, list[tuple[int, str]]]:
    """The item, and which of its contents are audio still to be heard: index and base64.

    :raises ApiError: naming the field within ``path``.
    """
    item_id = fields.id or new_item_id()
    if len(item_id) > _ID_CHARS:
        raise invalid(f"{path}.id", f"expected at most {_ID_CHARS} characters")
    if fields.type == "function_call_output":
        call_id = _needed(fields.call_id, f"{path}.call_id")
        output = _needed(fields.output, f"{path}.output")
        return Item(type=fields.type, id=item_id, call_id=call_id, output=output), []
    if fields.type == "function_call":
        item = Item(
            type=fields.type,
            id=item_id,
            call_id=fields.call_id or f"call_{secrets.token_hex(8)}",
            name=_needed(fields.name, f"{path}.name"),
            arguments=_needed(fields.arguments, f"{path}.arguments"),
        )
        return item, []
    if fields.type == "item_reference":
        raise invalid(f"{path}.type", "item_reference is possible in response.input only")
    return _message(fields, item_id, path)


def _message(fields: ItemFields, item_id: str, path: str) -> tuple[Item, list[tuple[int, str]]]:
    role = _needed(fields.role, f"{path}.role")
    item = Item(type="message", id=item_id, role=role)
    to_hear = []
    for i, part in enumerate(_needed(fields.content, f"{path}.content")):
        at = f"{path}.content[{i}]"
        type_ = _OLD_CONTENT.get(part.type, part.type) if role == "assistant" else part.type
        if type_ == "input_image":
            raise unsupported(at, "image input is not supported by this model")
        if type_ not in _CONTENT_OF_ROLE[role]:
            expected = " or ".join(_CONTENT_OF_ROLE[role])
            raise invalid(f"{at}.type", f"expected {expected} from {role}, got {part.type}")
        if type_ == "input_audio" and part.transcript is None:
            to_hear.append((i, _needed(part.audio, f"{at}.audio")))
            item.content.append(Content(type_, None))
        else:
            name = "transcript" if type_ == "input_audio" else _TEXT_FIELD[type_]
            item.content.append(Content(type_, _needed(getattr(part, name), f"{at}.{name}")))
    return item, to_hear


_T = TypeVar("_T")


def _needed(value: _T | None, path: str) -> _T:
    if value is None:
        raise invalid(path, "required, but missing", code="missing_required_parameter")
    return value


class Conversation:
    """Items in their order."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def get(self, item_id: str, param: str = "item_id") -> Item:
        """:raises ApiError: there is none of that id."""
        return self._items[self._index(item_id, param)]

    def add(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Put ``item`` behind another, ``root``, or (None) at the end.

        :returns: the id of the item before it.
        :raises ApiError: no such item, or the item's own id is taken.
        """
        if any(other.id == item.id for other in self._items):
            raise invalid("item.id", f"{shown(item.id)} is in the conversation already")
        index = len(self._items)
        if previous_item_id == ROOT:
            index = 0
        elif previous_item_id is not None:
            index = self._index(previous_item_id, "previous_item_id") + 1
        self._items.insert(index, item)
        return self._items[index - 1].id if index else None

    def before(self, item: Item) -> str | None:
        """The id of the item before ``item``."""
        index = self._items.index(item)
        return self._items[index - 1].id if index else None

    def delete(self, item_id: str) -> None:
        """:raises ApiError: there is none of that id."""
        del self._items[self._index(item_id, "item_id")]

    def _index(self, item_id: str, param: str) -> int:
        for index, item in enumerate(self._items):
            if item.id == item_id:
                return index
        raise invalid(
            param, f"there is no item {shown(item_id)} in the conversation", code="item_not_found"
        )


def chat_messages(instructions: str, items: Sequence[Item]) -> list[dict[str, Any]]:
    """The conversation as chat templates take it. Items without words are left out."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        elif item.type == "function_call":
            _add_call(messages, item)
        elif item.text:
            messages.append({"role": item.role, "content": item.text})
    # An answer is to come: a conversation that ends with one would have that one continued.
    if not messages or messages[-1]["role"] in ("assistant", "system"):
        messages.append({"role": "user", "content": ""})
    return messages


def _add_call(messages: list[dict[str, Any]], item: Item) -> None:
    call = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
