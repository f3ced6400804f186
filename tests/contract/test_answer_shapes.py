"""Calls and reasoning on the wire, from a scripted engine that writes what no small model would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ferrum_local.http.app import create_app
from ferrum_local.types import ChatPrompt, FinishReason, StreamChunk, TokenLogprob, ToolCallDelta
from tests.contract.raw import Reply, post
from tests.fakes import ScriptedEngine, Step, serving

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Weather in Paris and Rome?"}]
FUNCTION = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]


def calls(*deltas: ToolCallDelta) -> StreamChunk:
    return StreamChunk(index=0, tool_calls=deltas, token_ids=(1,))


def end(reason: FinishReason) -> StreamChunk:
    return StreamChunk(index=0, finish_reason=reason)


def begin(i: int) -> ToolCallDelta:
    return ToolCallDelta(index=i, id=f"call_{i}", name="weather")


def more(i: int, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index=i, arguments=arguments)


TWO_CALLS: tuple[Step, ...] = (
    StreamChunk(index=0, reasoning="Two", token_ids=(1,)),
    StreamChunk(index=0, reasoning=" cities.", token_ids=(1,)),
    calls(begin(0)),
    calls(more(0, '{"city"')),
    calls(more(0, ': "Paris"}'), begin(1), more(1, "{")),
    calls(more(1, '"city": "Rome"}')),
    end(FinishReason.TOOL_CALLS),
)
TEXT_THEN_CALL: tuple[Step, ...] = (
    StreamChunk(index=0, text="One moment", token_ids=(1,)),
    calls(begin(0), more(0, "{}")),
    end(FinishReason.TOOL_CALLS),
)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(TWO_CALLS)


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(create_app(engine)) as address:
        yield address.url


def ask(url: str, **fields: Any) -> Reply:
    return post(url, PATH, {"messages": HI, "tools": TOOLS, **fields})


def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def choices(reply: Reply) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in reply.events[:-1]]


def test_calls_without_a_stream(url: str) -> None:
    (choice,) = ask(url).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "content": None,
        "role": "assistant",
        "refusal": None,
        "reasoning_content": "Two cities.",
        "tool_calls": [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": "weather", "arguments": json.dumps({"city": city})},
            }
            for i, city in enumerate(("Paris", "Rome"))
        ],
    }


def test_calls_in_a_stream(url: str) -> None:
    first, *middle, last = choices(ask(url, stream=True))
    assert first["delta"] == {"role": "assistant", "content": None}
    assert [c["delta"] for c in middle[:2]] == [
        {"reasoning_content": "Two"},
        {"reasoning_content": " cities."},
    ]
    deltas = [call for c in middle[2:] for call in c["delta"]["tool_calls"]]
    assert all(list(c["delta"]) == ["tool_calls"] for c in middle[2:])
    assert [d["index"] for d in deltas] == [0, 0, 0, 1, 1, 1]
    for i in (0, 1):
        beginning, *rest = [d for d in deltas if d["index"] == i]
        assert beginning == {
            "index": i,
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "weather", "arguments": ""},
        }
        assert all(set(d) == {"index", "function"} for d in rest)
        assert all(set(d["function"]) == {"arguments"} for d in rest)
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")


@pytest.mark.parametrize("script", [TWO_CALLS, TEXT_THEN_CALL])
def test_the_stream_helper_puts_together_what_comes_unstreamed(
    engine: ScriptedEngine, url: str, script: tuple[Step, ...]
) -> None:
    engine.script = script
    whole = client(url).chat.completions.create(model="tiny", messages=HI, tools=TOOLS)
    with client(url).chat.completions.stream(model="tiny", messages=HI, tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (there,), (here,) = whole.choices, final.choices
    assert here.finish_reason == there.finish_reason == "tool_calls"
    assert here.message.content == there.message.content
    assert [(c.id, c.function.name, c.function.arguments) for c in here.message.tool_calls] == [
        (c.id, c.function.name, c.function.arguments) for c in there.message.tool_calls
    ]
    done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert [(e.index, e.name) for e in done] == [
        (i, "weather") for i in range(len(there.message.tool_calls))
    ]


def test_with_tools_an_answer_without_calls_has_its_text(engine: ScriptedEngine, url: str) -> None:
    for text in ("Hello", ""):
        engine.script = (StreamChunk(index=0, text=text), end(FinishReason.STOP))
        message = ask(url).json["choices"][0]["message"]
        assert message == {"content": text, "role": "assistant", "refusal": None}
        deltas = [c["delta"] for c in choices(ask(url, stream=True))]
        assert deltas == [{"role": "assistant", "content": None}, {"content": text}, {}]


def test_without_tools_a_stream_begins_as_ever(engine: ScriptedEngine, url: str) -> None:
    engine.script = (end(FinishReason.STOP),)
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        deltas = [c["delta"] for c in choices(ask(url, stream=True, **fields))]
        assert deltas == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("stream", [False, True])
def test_the_older_functions_are_answered_in_their_shape(
    engine: ScriptedEngine, url: str, stream: bool
) -> None:
    engine.script = (
        calls(begin(0), more(0, '{"city": ')),
        calls(more(0, '"Paris"}')),
        end(FinishReason.TOOL_CALLS),
    )
    reply = post(url, PATH, {"messages": HI, "functions": [FUNCTION], "stream": stream})
    if not stream:
        (choice,) = reply.json["choices"]
        assert choice["message"] == {
            "content": None,
            "role": "assistant",
            "refusal": None,
            "function_call": {"name": "weather", "arguments": '{"city": "Paris"}'},
        }
        assert choice["finish_reason"] == "function_call"
    else:
        _, *middle, last = choices(reply)
        first, *rest = [c["delta"]["function_call"] for c in middle]
        assert first == {"name": "weather", "arguments": ""}
        assert all(set(part) == {"arguments"} for part in rest)
        assert "".join(part["arguments"] for part in rest) == '{"city": "Paris"}'
        assert last["finish_reason"] == "function_call"
    (prompt,) = [r.prompt for r in engine.requests]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools[0]["function"]["name"] == "weather"
    assert not prompt.parallel_tool_calls


def test_logprobs_go_with_the_content_they_belong_to(engine: ScriptedEngine, url: str) -> None:
    entry = TokenLogprob(1, b"One", -0.5)
    engine.script = (
        StreamChunk(index=0, reasoning="Hm", token_ids=(1,)),
        StreamChunk(index=0, text="One", token_ids=(1,), logprobs=(entry,)),
        calls(begin(0), more(0, "{}")),
        end(FinishReason.TOOL_CALLS),
    )
    whole = ask(url, logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert [e["token"] for e in whole] == ["One"]
    streamed = [c for c in choices(ask(url, logprobs=True, stream=True)) if c["logprobs"]]
    assert [c["delta"] for c in streamed] == [{"content": "One"}]


def test_an_answer_can_be_sent_back_as_the_client_has_it(url: str) -> None:
    """Also as the client's own helpers have it, with fields of theirs in it."""
    sdk = client(url)
    strict = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
    with sdk.chat.completions.stream(model="tiny", messages=HI, tools=strict) as stream:
        streamed = stream.get_final_completion().choices[0].message
    parsed = sdk.chat.completions.parse(model="tiny", messages=HI, tools=strict)
    made = sdk.chat.completions.create(model="tiny", messages=HI, tools=TOOLS)
    for message in (streamed, parsed.choices[0].message, made.choices[0].message):
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "18 °C"}
            for call in message.tool_calls
        ]
        answer = sdk.chat.completions.create(
            model="tiny", messages=[*HI, message, *results], tools=TOOLS
        )
        assert answer.choices[0].finish_reason == "tool_calls"


def test_what_cannot_be_is_a_400_that_names_the_field(url: str) -> None:
    twice = [*TOOLS, *TOOLS]
    reply = ask(url, tools=twice)
    assert (reply.status, reply.error["param"]) == (400, "tools[1].function.name")
    named = {"type": "function", "function": {"name": "nobody"}}
    reply = ask(url, tool_choice=named)
    assert (reply.status, reply.error["param"]) == (400, "tool_choice.function.name")
    reply = ask(url, reasoning_effort="a lot")
    assert (reply.status, reply.error["param"]) == (400, "reasoning_effort")
