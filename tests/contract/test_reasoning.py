"""Reasoning over HTTP, from a tiny model whose template opens a block of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.http.app import create_app
from ferrum_local.types import LlmOptions, ModelSpec
from tests.contract.raw import Reply, post
from tests.engine.test_reasoning import MARKS, TEMPLATE
from tests.engine.tiny_models import write_llama
from tests.fakes import serving

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    write_llama(path, marks=MARKS, chat_template=TEMPLATE)
    engine = LocalEngine(
        [ModelSpec(id="thinker", path=str(path))], LlmOptions(ctx_size=512, slots=4, threads=1)
    )
    engine.load()
    with serving(create_app(engine)) as address:
        yield address.url
    engine.close()


def ask(url: str, **fields: Any) -> Reply:
    body = {"messages": HI, "max_tokens": 40, "seed": 5, "reasoning_budget_tokens": 8, **fields}
    reply = post(url, PATH, body)
    assert reply.status == 200, reply.body
    return reply


def test_chat_23_reasoning_is_a_field_of_its_own_streamed_or_not(url: str) -> None:
    whole = ask(url).json
    (choice,) = whole["choices"]
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"]
    assert "think>" not in json.dumps(choice)
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9
    *parts, last, _ = ask(url, stream=True, stream_options={"include_usage": True}).events
    deltas = [p["choices"][0]["delta"] for p in parts]
    for field in ("reasoning_content", "content"):
        joined = "".join(d.get(field) or "" for d in deltas)
        assert joined == choice["message"][field]
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9
    kinds = [next(iter(d)) for d in deltas if d and "role" not in d]
    assert kinds == sorted(kinds, reverse=True)  # all reasoning, then all content


def test_chat_23_the_official_client_reads_it(url: str) -> None:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    fields: dict[str, Any] = {
        "model": "default", "messages": HI, "max_tokens": 40, "seed": 5,
        "extra_body": {"reasoning_budget_tokens": 8},
    }  # fmt: skip
    whole = client.chat.completions.create(**fields)
    thought = content = ""
    for part in client.chat.completions.create(**fields, stream=True):
        delta = part.choices[0].delta
        thought += (delta.model_extra or {}).get("reasoning_content", "")
        content += delta.content or ""
    assert content == whole.choices[0].message.content
    assert thought == whole.choices[0].message.model_extra["reasoning_content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_budget_tokens": 0},
        {"reasoning_budget_tokens": None, "thinking_budget_tokens": 0},
    ],
)
def test_turned_off_there_is_none(url: str, fields: dict[str, Any]) -> None:
    answer = ask(url, **fields).json
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_format_none_leaves_it_in_the_content(url: str) -> None:
    message = ask(url, reasoning_format="none").json["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert "</think>" in message["content"]


def test_json_comes_behind_it(url: str) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = ask(url, response_format=format_).json["choices"][0]["message"]
    assert message["reasoning_content"]
    assert set(json.loads(message["content"])) == {"ok"}


def test_history_with_reasoning_is_taken(url: str) -> None:
    message = ask(url).json["choices"][0]["message"]
    assert ask(url, messages=[*HI, message, *HI]).json["choices"]
