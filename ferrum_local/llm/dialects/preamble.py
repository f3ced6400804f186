"""What a model is told about tools when its template has no place for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_FORM = """\
To call a tool, write its name and its arguments as JSON inside <tool_call></tool_call>:
<tool_call>
{"name": "tool name", "arguments": {"argument name": "value"}}
</tool_call>"""


def tool_preamble(
    tools: Sequence[Mapping[str, Any]], choice: str, name: str | None, parallel: bool
) -> str:
    """System text with the tools and how to call them; empty where none may be called."""
    functions = [tool.get("function", tool) for tool in tools]
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
    if not functions or choice == "none":
        return ""
    lines = "\n".join(json.dumps(_shown(function), ensure_ascii=False) for function in functions)
    return f"You can call these tools:\n<tools>\n{lines}\n</tools>\n\n{_FORM}\n\n" + _manners(
        choice, name, parallel
    )


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "description", "parameters")
    return {key: function[key] for key in keys if function.get(key) is not None}


def _manners(choice: str, name: str | None, parallel: bool) -> str:
    if name is not None:
        demand = f"Answer with a call of {name}."
    elif choice == "required":
        demand = "Answer with a call of a tool."
    else:
        demand = "Call a tool only if it helps to answer; else answer in plain text."
    number = (
        "Write several calls, each in its own <tool_call></tool_call>, if several are needed."
        if parallel
        else "Make one call at most."
    )
    return f"{demand} {number}"
