"""The tools of a request, in today's fields or the older ones → what the engine takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from ferrum_local.http.openai.schemas import (
    ChatCompletionRequest,
    FunctionDefinition,
    ToolChoice,
)
from ferrum_local.http.openai.validation import invalid, shown

MAX_TOOLS = 128  # OpenAI's limit
# With nothing but these, and no properties, a schema is how many write that there are none.
_SAY_NOTHING = frozenset(("type", "properties", "required", "title", "description", "$schema"))
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

# A function without parameters is called with {} and nothing else.
NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``is_legacy``: they came as ``functions``, and calls are answered as ``function_call``."""

    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    tool_name: str | None = None
    parallel: bool | None = None
    is_legacy: bool = False


def tool_options(request: ChatCompletionRequest) -> ToolOptions:
    """:raises ApiError: 400 for tools that cannot be, or a choice among them that does not fit."""
    if request.functions:
        return _legacy_options(request, request.functions)
    if request.function_call not in (None, "none", "auto"):
        raise invalid("function_call", "needs functions")
    definitions = [tool.function for tool in request.tools or ()]
    tools = _tools(definitions, "tools", inner=".function")
    choice = request.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "needs tools")
        return ToolOptions()
    parallel = request.parallel_tool_calls
    if choice is None or isinstance(choice, str):
        return ToolOptions(tools=tools, tool_choice=choice or "auto", parallel=parallel)
    return _chosen(choice, tools, parallel)


def _chosen(
    choice: ToolChoice, tools: tuple[dict[str, Any], ...], parallel: bool | None
) -> ToolOptions:
    if choice.type == "function":
        if choice.function is None or choice.allowed_tools is not None:
            raise _missing("tool_choice.function", "function")
        name = _known(choice.function.name, tools, "tool_choice.function.name")
        return ToolOptions(tools=tools, tool_choice="required", tool_name=name, parallel=parallel)
    allowed = choice.allowed_tools
    if allowed is None or choice.function is not None:
        raise _missing("tool_choice.allowed_tools", "allowed_tools")
    names = {
        _known(tool.function.name, tools, f"tool_choice.allowed_tools.tools[{i}].function.name")
        for i, tool in enumerate(allowed.tools)
    }
    kept = tuple(tool for tool in tools if tool["function"]["name"] in names)
    return ToolOptions(tools=kept, tool_choice=allowed.mode, parallel=parallel)


def _missing(path: str, type_: str) -> Exception:
    return invalid(path, f"with the type {type_} this field, and no other, is expected")


def _legacy_options(
    request: ChatCompletionRequest, functions: Sequence[FunctionDefinition]
) -> ToolOptions:
    if request.tools or request.tool_choice is not None:
        name = "tools" if request.tools else "tool_choice"
        raise invalid(name, "cannot be combined with functions, which is its older form")
    tools = _tools(functions, "functions")
    choice = request.function_call
    if choice is None or isinstance(choice, str):
        return ToolOptions(
            tools=tools, tool_choice=choice or "auto", parallel=False, is_legacy=True
        )
    return ToolOptions(
        tools=tools,
        tool_choice="required",
        tool_name=_known(choice.name, tools, "function_call.name"),
        parallel=False,  # an answer in this shape has room for one
        is_legacy=True,
    )


def _known(name: str, tools: Iterable[dict[str, Any]], path: str) -> str:
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise invalid(path, f"expected the name of one of the tools, got {shown(name)}")
    return name


def _tools(
    functions: Sequence[FunctionDefinition], field: str, *, inner: str = ""
) -> tuple[dict[str, Any], ...]:
    if len(functions) > MAX_TOOLS:
        raise invalid(field, f"expected at most {MAX_TOOLS}, got {len(functions)}")
    seen: dict[str, int] = {}
    tools = []
    for i, function in enumerate(functions):
        path = f"{field}[{i}]{inner}"
        if not _NAME.fullmatch(function.name):
            raise invalid(
                f"{path}.name",
                f"expected 1 to 64 letters, digits, _ or -, got {shown(function.name)}",
            )
        first = seen.setdefault(function.name, i)
        if first != i:
            raise invalid(
                f"{path}.name", f"{shown(function.name)} is the name of {field}[{first}] already"
            )
        tools.append(
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    # Always there: some templates join it to other text.
                    "description": function.description or "",
                    "parameters": _parameters(function, f"{path}.parameters"),
                },
            }
        )
    return tuple(tools)


def _parameters(function: FunctionDefinition, path: str) -> dict[str, Any]:
    given = function.parameters
    if not given:
        return NO_PARAMETERS
    if "type" not in given:
        return {"type": "object", **given}
    if given["type"] != "object":
        raise invalid(
            f"{path}.type",
            f'arguments are an object: expected "object", got {shown(given["type"])}',
        )
    if not given.get("properties") and given.keys() <= _SAY_NOTHING:
        return NO_PARAMETERS
    return given
