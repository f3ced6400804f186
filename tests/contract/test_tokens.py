"""Templates and tokens over HTTP: llama.cpp's routes, and OpenAI's count of input tokens."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum_local.http.app import create_app
from ferrum_local.http.tokens import MAX_CHARS
from tests.contract.live import CHAT
from tests.contract.raw import Reply, post
from tests.fakes import ScriptedEngine, serving

HI: list[dict[str, Any]] = [{"role": "user", "content": "Say hello."}]
COUNT = "/v1/chat/completions/input_tokens"
TEXT = "Grüße, 世界! 🦀 <|im_start|>"
WEATHER = {"name": "weather", "description": "The weather of a city", "parameters": {}}
FORECAST = {"name": "forecast", "description": "What it will be tomorrow", "parameters": {}}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": FORECAST}]


def tokenize(server: Any, **fields: Any) -> list[Any]:
    return ok(post(server.url, "/tokenize", fields))["tokens"]


def detokenize(server: Any, tokens: list[int]) -> str:
    return ok(post(server.url, "/detokenize", {"tokens": tokens}))["content"]


def template(server: Any, **fields: Any) -> str:
    reply = ok(post(server.url, "/apply-template", {"messages": HI, **fields}))
    assert set(reply) == {"prompt"}
    return str(reply["prompt"])


def ok(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return reply.json


@pytest.mark.parametrize("parse_special", [True, False])
def test_text_becomes_tokens_and_text_again(server: Any, parse_special: bool) -> None:
    tokens = tokenize(server, content=TEXT, parse_special=parse_special)
    assert detokenize(server, tokens) == TEXT
    (im_start,) = tokenize(server, content="<|im_start|>")
    assert (im_start in tokens) == parse_special


def test_pieces_are_text_or_bytes(server: Any) -> None:
    tokens = tokenize(server, content=TEXT)
    pieces = tokenize(server, content=TEXT, with_pieces=True)
    assert [p["id"] for p in pieces] == tokens
    data = [
        p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces
    ]
    assert b"".join(data).decode() == TEXT
    assert any(isinstance(p["piece"], list) for p in pieces)  # parts of the crab


def test_text_and_tokens_can_be_mixed(server: Any) -> None:
    hello = tokenize(server, content="hello")
    assert tokenize(server, content=["hello", 1, "hello"]) == [*hello, 1, *hello]
    assert tokenize(server, content="") == tokenize(server, content=[]) == []
    assert detokenize(server, []) == ""


def test_the_prompt_is_what_a_chat_completion_evaluates(server: Any) -> None:
    prompt = template(server)
    assert prompt.endswith("<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n")
    n_tokens = len(tokenize(server, content=prompt))
    assert ok(post(server.url, COUNT, {"messages": HI})) == {
        "object": "response.input_tokens",
        "input_tokens": n_tokens,
    }
    usage = ok(post(server.url, CHAT, {"messages": HI, "max_tokens": 1}))["usage"]
    assert usage["prompt_tokens"] == n_tokens
    continued = template(server, messages=[*HI, {"role": "assistant", "content": "Hel"}])
    assert continued == f"{prompt}Hel"


def test_tool_11_the_prompt_has_all_that_tools_say(server: Any) -> None:
    twins = [
        {"type": "function", "function": {"name": f"f{i}", "description": f"says {word}"}}
        for i, word in enumerate(("good morning", "good night"))
    ]
    prompt = template(server, tools=twins)
    for word in ("f0", "f1", "says good morning", "says good night"):
        assert word in prompt
    with_tools, without = (
        ok(post(server.url, COUNT, {"messages": HI, **more}))["input_tokens"]
        for more in ({"tools": twins}, {})
    )
    assert with_tools > without
    system = {"role": "system", "content": "Be brief."}
    both = template(server, messages=[system, *HI], tools=twins)
    assert both.index("Be brief.") < both.index("says good morning") < both.index("Say hello.")
    assert both.count("<|im_start|>system") == 1


def test_tools_that_may_not_be_called_are_not_in_the_prompt(server: Any) -> None:
    assert template(server, tools=TOOLS, tool_choice="none") == template(server)


def test_a_conversation_that_does_not_fit_is_still_counted(server: Any) -> None:
    long = [{"role": "user", "content": " dog" * 5000}]
    assert ok(post(server.url, COUNT, {"messages": long}))["input_tokens"] > 5000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [-1]}, "content[0]"),
        ("/tokenize", {"content": [None]}, "content[0]"),
        ("/tokenize", {"content": "a", "with_piece": True}, "with_piece"),
        ("/tokenize", {"content": "a" * (MAX_CHARS + 1)}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, 10**9]}, "tokens[1]"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool"),
        (COUNT, {"messages": []}, "messages"),
        (COUNT, {"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_bad_requests_are_named(server: Any, path: str, body: Any, param: str) -> None:
    reply = post(server.url, path, body)
    assert reply.status == 400, reply.body
    assert reply.error["param"].startswith(param)
    assert reply.error["type"] == "invalid_request_error"


def test_a_token_beside_text_must_exist(server: Any) -> None:
    body = {"content": ["a", 5, "b", 10**9, 10**9 + 1], "with_pieces": True}
    reply = post(server.url, "/tokenize", body)
    assert (reply.status, reply.error["param"]) == (400, "content[3]")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", {"messages": HI}),
        (COUNT, {"messages": HI}),
    ],
)
def test_model_names_are_as_everywhere(server: Any, path: str, body: dict[str, Any]) -> None:
    for name in (server.model, "smol", "default", "", None):
        ok(post(server.url, path, {**body, "model": name}))
    reply = post(server.url, path, {**body, "model": "gpt-4o"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_the_scripted_engine_answers_them_too() -> None:
    with serving(create_app(ScriptedEngine())) as address:
        tokens = ok(post(address.url, "/tokenize", {"content": "é", "add_special": True}))
        assert tokens == {"tokens": [256, 195, 169]}
        assert ok(post(address.url, "/detokenize", tokens)) == {"content": "é"}
        both = {"content": ["a", "b"], "add_special": True}
        assert ok(post(address.url, "/tokenize", both)) == {"tokens": [256, 97, 98]}
