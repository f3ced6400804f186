"""Tools as clients offer and choose them, and calls as the server answers them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call: ``name`` is 1 to 64 letters, digits, ``_`` and ``-``,
    ``parameters`` the JSON schema of an object; without it the function takes none. All schemas
    are enforced, ``strict`` or not."""

    noun: ClassVar[str] = "function"

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "tool"

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "function name"

    name: str


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "tool name"

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Some of ``tools``: the others are as if they were not there."""

    noun: ClassVar[str] = "object"

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Demands one function, or allows only some. ``type`` says which of the two fields is set."""

    noun: ClassVar[str] = "object"

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(msgspec.Struct, kw_only=True, frozen=True):
    """``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


class AnsweredToolCall(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class FunctionDelta(msgspec.Struct, kw_only=True, frozen=True):
    """A fragment of ``arguments``; the name comes once, with the call's first."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallChunk(msgspec.Struct, kw_only=True, frozen=True):
    """What a call gained; ``id`` and ``type`` come once, with its first."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta
