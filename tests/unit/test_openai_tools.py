"""The tools and reasoning fields of a request become what the engine takes, or a 400."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.reasoning import reasoning_options
from ferrum_local.http.openai.schemas import ChatCompletionRequest
from ferrum_local.http.openai.tools import MAX_TOOLS, ToolOptions, tool_options
from ferrum_local.http.openai.validation import parse_request
from ferrum_local.types import ReasoningOptions

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMED = {"type": "function", "function": {"name": "weather"}}


def tool(name: str = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **more}}


def parsed(**fields: Any) -> ChatCompletionRequest:
    return parse_request(
        {"messages": [{"role": "user", "content": "hi"}], **fields}, ChatCompletionRequest
    )


def options(**fields: Any) -> ToolOptions:
    return tool_options(parsed(**fields))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        options(**fields)
    assert caught.value.status == 400
    return caught.value


def test_tools_reach_the_engine_with_name_description_and_parameters() -> None:
    given = options(tools=[tool(description="of a city", strict=True), tool("time")])
    assert given.tools == (
        {
            "type": "function",
            "function": {"name": "weather", "description": "of a city", "parameters": CITY},
        },
        {"type": "function", "function": {"name": "time", "description": "", "parameters": CITY}},
    )
    assert (given.tool_choice, given.tool_name, given.parallel) == ("auto", None, None)
    assert not given.is_legacy


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_a_choice_by_word(choice: str) -> None:
    given = options(tools=[tool()], tool_choice=choice, parallel_tool_calls=False)
    assert (given.tool_choice, given.tool_name, given.parallel) == (choice, None, False)


def test_tool_01_a_choice_by_name() -> None:
    given = options(tools=[tool(), tool("time")], tool_choice=NAMED)
    assert (given.tool_choice, given.tool_name) == ("required", "weather")
    assert len(given.tools) == 2
    error = refused(tools=[tool("time")], tool_choice=NAMED)
    assert error.param == "tool_choice.function.name"
    assert "weather" in error.message


def test_allowed_tools_leave_the_others_out() -> None:
    allowed = {"mode": "required", "tools": [NAMED]}
    given = options(
        tools=[tool("time"), tool()],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
    )
    assert [t["function"]["name"] for t in given.tools] == ["weather"]
    assert given.tool_choice == "required"
    error = refused(
        tools=[tool("time")], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert error.param == "tool_choice.allowed_tools.tools[0].function.name"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"parameters": None},
        {"parameters": {}},
        {"parameters": {"type": "object"}},
        {"parameters": {"type": "object", "properties": {}, "required": []}},
    ],
)
def test_tool_06_without_parameters_a_function_takes_none(parameters: dict[str, Any]) -> None:
    (given,) = options(
        tools=[{"type": "function", "function": {"name": "now", **parameters}}]
    ).tools
    assert given["function"]["parameters"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_a_schema_that_says_more_stays_as_it_is() -> None:
    anything = {"type": "object", "additionalProperties": {"type": "string"}}
    (given,) = options(tools=[tool(parameters=anything)]).tools
    assert given["function"]["parameters"] == anything


def test_parameters_without_a_type_are_an_object() -> None:
    (given,) = options(tools=[tool(parameters={"properties": {"a": {}}})]).tools
    assert given["function"]["parameters"] == {"type": "object", "properties": {"a": {}}}


def test_the_older_functions_allow_one_call() -> None:
    given = options(functions=[{"name": "weather", "parameters": CITY}], function_call="auto")
    assert (given.tool_choice, given.parallel, given.is_legacy) == ("auto", False, True)
    given = options(functions=[{"name": "weather"}], function_call={"name": "weather"})
    assert (given.tool_choice, given.tool_name) == ("required", "weather")
    assert options(functions=[{"name": "f"}], function_call="none").tool_choice == "none"


def test_without_tools_only_choices_without_effect_pass() -> None:
    for choice in ("none", "auto", None):
        assert options(tools=[], tool_choice=choice, function_call=choice) == ToolOptions()
    assert refused(tool_choice="required").param == "tool_choice"
    assert refused(tools=[], tool_choice=NAMED).param == "tool_choice"
    assert refused(function_call={"name": "f"}).param == "function_call"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("f\n")]}, "tools[0].function.name"),
        ({"tools": [tool("f" * 65)]}, "tools[0].function.name"),
        ({"tools": [tool("é")]}, "tools[0].function.name"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name"),
        ({"tools": [tool(str(i)) for i in range(MAX_TOOLS + 1)]}, "tools"),
        (
            {"tools": [tool(parameters={"type": "string"})]},
            "tools[0].function.parameters.type",
        ),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [tool(arguments={})]}, "tools[0].function.arguments"),
        ({"tools": tool()}, "tools"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": [tool()], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools",
        ),
        ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"functions": [{"name": "f"}], "tools": [tool()]}, "tools"),
        ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
    ],
)
def test_what_cannot_be_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_messages_say_what_was_expected() -> None:
    assert "one of auto, none, required" in refused(tools=[tool()], tool_choice="any").message
    assert "letters, digits" in refused(tools=[tool("a b")]).message
    assert "tools[0]" in refused(tools=[tool(), tool()]).message


def test_reasoning_fields() -> None:
    assert reasoning_options(parsed()) == ReasoningOptions()
    given = reasoning_options(
        parsed(reasoning_effort="low", reasoning_format="none", reasoning_budget_tokens=9)
    )
    assert given == ReasoningOptions(separate=False, budget_tokens=9, effort="low")
    for name in ("auto", "deepseek"):
        assert reasoning_options(parsed(reasoning_format=name)).separate
    assert reasoning_options(parsed(thinking_budget_tokens=0)).budget_tokens == 0
    assert reasoning_options(parsed(reasoning_budget_tokens=-1)).budget_tokens is None
    with pytest.raises(ApiError) as caught:
        reasoning_options(parsed(reasoning_budget_tokens=1, thinking_budget_tokens=2))
    assert caught.value.param == "thinking_budget_tokens"
    for name, value in (("reasoning_effort", "huge"), ("reasoning_format", "xml")):
        with pytest.raises(ApiError) as caught:
            parsed(**{name: value})
        assert caught.value.param == name
