"""Tools with a real model that never learned to call one, asked by the official client."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.contract.live import CHAT
from tests.contract.raw import Reply, post

WEATHER_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city right now",
        "parameters": WEATHER_SCHEMA,
        "strict": True,
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 99},
                "y": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["x", "y"],
        },
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": "The time"}}
TOOLS = [WEATHER, ADD, NOW]
ASK = [{"role": "user", "content": "What is the weather in Paris, and what is 2 plus 2?"}]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def ask(server: Any, **fields: Any) -> Any:
    request: dict[str, Any] = {
        "model": "default", "messages": ASK, "tools": TOOLS, "temperature": 1, "max_tokens": 80,
    }  # fmt: skip
    return server.client().chat.completions.create(**{**request, **fields})


def raw(server: Any, **fields: Any) -> Reply:
    body = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 80, **fields}
    return post(server.url, CHAT, body)


def check_call(call: Any, *, allowed: tuple[str, ...] = ("get_weather", "add", "now")) -> None:
    assert call.id
    assert call.type == "function"
    assert call.function.name in allowed
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert set(arguments) == {"city", "unit"}
        assert isinstance(arguments["city"], str)
        assert arguments["unit"] in ("celsius", "fahrenheit")
    elif call.function.name == "add":
        assert set(arguments) == {"x", "y"}
        assert all(type(value) is int and 0 <= value <= 99 for value in arguments.values())
    else:
        assert arguments == {}


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_20_of_20_demanded_calls_have_the_right_shape(server: Any, choice: str) -> None:
    demanded = choice if choice == "required" else named(choice)
    allowed = ("get_weather", "add", "now") if choice == "required" else (choice,)
    choices = [
        c for seed in range(5) for c in ask(server, tool_choice=demanded, n=4, seed=seed).choices
    ]
    assert len(choices) == 20
    for choice_ in choices:
        assert choice_.finish_reason == "tool_calls"
        assert choice_.message.content is None
        (call,) = choice_.message.tool_calls
        check_call(call, allowed=allowed)


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_20_of_20_with_the_clients_stream_helper(server: Any, choice: str) -> None:
    client = server.client()

    def stream(seed: int) -> tuple[list[Any], Any]:
        with client.chat.completions.stream(
            model="default", messages=ASK, tools=[WEATHER, ADD], temperature=1, max_tokens=80,
            tool_choice=choice if choice == "required" else named(choice), seed=seed,
        ) as helper:  # fmt: skip
            return list(helper), helper.get_final_completion()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(stream, range(20)))
    for events, answer in answers:
        (final,) = answer.choices
        assert final.finish_reason == "tool_calls"
        assert final.message.content is None
        (call,) = final.message.tool_calls
        check_call(call, allowed=("get_weather", "add") if choice == "required" else (choice,))
        assert call.function.parsed_arguments == json.loads(call.function.arguments)
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        assert [(e.index, e.name, e.arguments) for e in done] == [
            (0, call.function.name, call.function.arguments)
        ]
        deltas = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
        assert "".join(e.arguments_delta for e in deltas) == call.function.arguments


def test_tool_05_the_same_call_streamed_or_not(server: Any) -> None:
    for choice in ("required", named("add")):
        whole = raw(server, tool_choice=choice).json["choices"][0]
        events = [e["choices"][0] for e in raw(server, tool_choice=choice, stream=True).events[:-1]]
        first, *middle, last = events
        assert first["delta"] == {"role": "assistant", "content": None}
        deltas = [d for e in middle for d in e["delta"]["tool_calls"]]
        assert [d.get("function", {}).get("name") for d in deltas if "id" in d] == [
            whole["message"]["tool_calls"][0]["function"]["name"]
        ]
        assert (
            "".join(d["function"]["arguments"] for d in deltas)
            == (whole["message"]["tool_calls"][0]["function"]["arguments"])
        )
        assert last["finish_reason"] == whole["finish_reason"] == "tool_calls"
        assert whole["message"]["content"] is None


def test_tool_01_exactly_the_demanded_function_is_called(server: Any) -> None:
    for name in ("add", "now", "get_weather"):
        (call,) = ask(server, tool_choice=named(name), seed=1).choices[0].message.tool_calls
        check_call(call, allowed=(name,))
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, tool_choice=named("nobody"))
    assert caught.value.param == "tool_choice.function.name"


def test_tool_02_a_greeting_is_answered_in_text(server: Any) -> None:
    hello = [{"role": "user", "content": "hello"}]
    message = raw(server, messages=hello).json["choices"][0]["message"]
    if "tool_calls" not in message:  # a small model may also take the chance
        assert message["content"]
    reply = raw(server, messages=hello, tool_choice="none").json["choices"][0]
    assert "tool_calls" not in reply["message"]
    assert reply["message"]["content"]
    assert reply["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("temperature", [0, 1])
def test_tool_03_auto_streams_text_or_calls(server: Any, temperature: float) -> None:
    for seed in range(2):
        fields = {"temperature": temperature, "seed": seed, "max_tokens": 60}
        whole = raw(server, **fields).json["choices"][0]
        text, calls = "", {}
        *parts, _ = raw(server, stream=True, **fields).events
        for part in parts:
            delta = part["choices"][0]["delta"]
            text += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                name, arguments = calls.get(call["index"], ("", ""))
                function = call["function"]
                calls[call["index"]] = (
                    name + function.get("name", ""),
                    arguments + function["arguments"],
                )
        assert text == (whole["message"]["content"] or "")
        assert [*calls.values()] == [
            (c["function"]["name"], c["function"]["arguments"])
            for c in whole["message"].get("tool_calls", ())
        ]
        assert parts[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_integers_that_are_not_exact_are_refused_in_parameters_too(server: Any) -> None:
    least = -(2**63)  # ends the process where it comes to native code
    for schema, path in (
        ({"const": least}, "properties.n.const"),
        ({"type": "integer", "minimum": least, "maximum": least}, "properties.n.maximum"),
    ):
        parameters = {"type": "object", "properties": {"n": schema}, "required": ["n"]}
        tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
        for choice in ("auto", "required"):
            reply = raw(server, tools=[tool], tool_choice=choice)
            assert reply.status == 400, reply.body
            assert reply.error["param"] == f"tools[0].function.parameters.{path}"
    bounds = {"type": "integer", "minimum": least, "maximum": 2**63 - 1}
    tool["function"]["parameters"] = {  # type: ignore[index]
        "type": "object", "properties": {"n": bounds}, "required": ["n"],
    }  # fmt: skip
    reply = raw(server, tools=[tool], tool_choice="required")
    (call,) = reply.json["choices"][0]["message"]["tool_calls"]
    assert abs(json.loads(call["function"]["arguments"])["n"]) <= 2**53


def test_tool_06_a_function_without_parameters_gets_an_empty_object(server: Any) -> None:
    for parameters in ({}, {"parameters": {}}, {"parameters": {"type": "object"}}):
        tool = {"type": "function", "function": {"name": "now", **parameters}}
        (call,) = raw(server, tools=[tool], tool_choice="required").json["choices"][0]["message"][
            "tool_calls"
        ]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("now", "{}")


@pytest.mark.parametrize("stream", [False, True])
def test_tool_07_a_call_that_the_limit_cuts_is_length(server: Any, stream: bool) -> None:
    reply = raw(server, tool_choice="required", max_tokens=5, stream=stream)
    last = reply.events[-2] if stream else reply.json
    assert last["choices"][0]["finish_reason"] == "length"


def test_tool_10_calls_in_parallel_have_ids_and_indexes_of_their_own(server: Any) -> None:
    weather = [{"role": "user", "content": "Weather in Paris and in Rome?"}]
    fields = {
        "messages": weather, "tools": [WEATHER], "tool_choice": "required",
        "parallel_tool_calls": True, "max_tokens": 400, "temperature": 1,
    }  # fmt: skip
    for seed in itertools.count():
        assert seed < 20, "the model never made a second call"
        choice = raw(server, seed=seed, **fields).json["choices"][0]
        calls = choice["message"]["tool_calls"]
        if len(calls) > 1:
            break
    assert len({call["id"] for call in calls}) == len(calls)
    parts = raw(server, seed=seed, stream=True, **fields).events[:-1]
    deltas = [d for p in parts for d in p["choices"][0]["delta"].get("tool_calls", ())]
    assert [d["index"] for d in deltas if "id" in d] == list(range(len(calls)))
    one = raw(server, seed=seed, **{**fields, "parallel_tool_calls": False}).json["choices"][0]
    assert len(one["message"]["tool_calls"]) == 1


def test_n_choices_each_call(server: Any) -> None:
    answer = ask(server, tool_choice="required", n=3, seed=2)
    assert [c.finish_reason for c in answer.choices] == ["tool_calls"] * 3
    for choice in answer.choices:
        check_call(choice.message.tool_calls[0])
    ids = [c.message.tool_calls[0].id for c in answer.choices]
    assert len(set(ids)) == 3


def test_the_older_functions(server: Any) -> None:
    function = WEATHER["function"]
    fields = {
        "tools": None, "functions": [{k: v for k, v in function.items() if k != "strict"}],
        "function_call": {"name": "get_weather"},
    }  # fmt: skip
    choice = raw(server, **fields).json["choices"][0]
    assert choice["finish_reason"] == "function_call"
    call = choice["message"]["function_call"]
    assert call["name"] == "get_weather"
    assert set(json.loads(call["arguments"])) == {"city", "unit"}
    answer = {"role": "function", "name": "get_weather", "content": "18 °C and sunny"}
    follow_up = raw(
        server, **{**fields, "function_call": "none"}, messages=[*ASK, choice["message"], answer]
    )
    assert follow_up.json["choices"][0]["message"]["content"]


def test_chat_07_the_results_of_calls_are_answered(server: Any) -> None:
    message = ask(server, tool_choice=named("get_weather"), seed=1).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "18 °C and sunny"}
        for call in message.tool_calls
    ]
    answer = ask(server, messages=[*ASK, message, *results], tool_choice="none")
    assert answer.choices[0].message.content
    prompt = post(
        server.url,
        "/apply-template",
        {"messages": [*ASK, message.model_dump(exclude_none=True), *results]},
    ).json["prompt"]
    assert "get_weather" in prompt
    assert "18 °C and sunny" in prompt


def test_a_schema_that_cannot_be_enforced_is_a_400_naming_it(server: Any) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "banana"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": bad}}
    for stream in (False, True):
        reply = raw(server, tools=[NOW, tool], tool_choice="required", stream=stream)
        assert reply.status == 400
        assert reply.error["param"] == "tools[1].function.parameters.properties.a.type"


def test_calls_end_the_answer_and_other_streams_go_on(server: Any) -> None:
    usage = raw(server, tool_choice="required").json["usage"]
    assert usage["completion_tokens"] < 80
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_tools_and_a_response_format_give_a_call_or_the_format(server: Any) -> None:
    format_ = {
        "type": "json_schema",
        "json_schema": {
            "name": "reply",
            "schema": {
                "type": "object",
                "properties": {"mood": {"enum": ["good", "bad"]}},
                "required": ["mood"],
                "additionalProperties": False,
            },
        },
    }
    for seed in range(3):
        message = raw(server, response_format=format_, seed=seed, temperature=1).json["choices"][0][
            "message"
        ]
        if message.get("tool_calls"):
            assert message["content"] is None
        else:
            assert json.loads(message["content"])["mood"] in ("good", "bad")
    plain = raw(server, response_format=format_, tool_choice="none").json["choices"][0]["message"]
    assert json.loads(plain["content"])["mood"] in ("good", "bad")
    forced = raw(server, response_format=format_, tool_choice=named("now")).json["choices"][0]
    assert forced["message"]["tool_calls"][0]["function"]["name"] == "now"
