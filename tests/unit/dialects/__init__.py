"""Helpers for the tests of dialects: tools, running a parser, joining what it gave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrum_local.llm.dialects import Dialect, OutputParser


def tool(name: str, properties: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A tool with these properties, all of them required; without any it takes no arguments."""
    function: dict[str, Any] = {"name": name, "description": f"Does {name}."}
    if properties is not None:
        function["parameters"] = {
            "type": "object",
            "properties": dict(properties),
            "required": list(properties),
        }
    return {"type": "function", "function": function}


WEATHER = tool("weather", {"city": {"type": "string"}})
ADD = tool("add", {"x": {"type": "integer"}, "y": {"type": "integer"}})
NOW = tool("now")
TOOLS = (WEATHER, ADD, NOW)


@dataclass
class Answer:
    """An answer, joined from its deltas as a client would."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments
    ids: list[str] = field(default_factory=list)

    @property
    def parsed_calls(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def parser(
    dialect: Dialect,
    *,
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    tool_choice: str = "auto",
    tool_name: str | None = None,
    reasoning: bool = True,
    prompt_tail: str = "",
) -> OutputParser:
    return dialect.parser(
        tools=tools,
        tool_choice=tool_choice,
        tool_name=tool_name,
        reasoning=reasoning,
        prompt_tail=prompt_tail,
    )


def joined(parse: OutputParser, pieces: Iterable[str]) -> Answer:
    answer = Answer()
    for delta in [*map(parse.push, pieces), parse.finish()]:
        answer.content += delta.content
        answer.reasoning += delta.reasoning
        for call in delta.tool_calls:
            if call.index == len(answer.calls):
                assert call.id and call.name
                answer.calls.append((call.name, ""))
                answer.ids.append(call.id)
            else:
                assert call.id is None and call.name is None
            name, arguments = answer.calls[call.index]
            answer.calls[call.index] = (name, arguments + call.arguments)
    assert parse.n_tool_calls == len(answer.calls)
    return answer


def read(dialect: Dialect, text: str, **options: Any) -> Answer:
    """``text`` parsed at once, and the same character by character."""
    whole = joined(parser(dialect, **options), [text])
    single = joined(parser(dialect, **options), text)
    assert (whole.content, whole.reasoning, whole.calls) == (
        single.content,
        single.reasoning,
        single.calls,
    )
    return whole
