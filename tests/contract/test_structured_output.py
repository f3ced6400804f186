"""Structured output over HTTP: the official client, and the fields of other servers."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from bench.structured import CUSTOMER
from check_schemas import ask, faults_of
from schema_cases import SCHEMAS, Drawing, Order
from tests.contract.live import wait_idle

N_ANSWERS = 5
MESSAGES: list[Any] = [{"role": "user", "content": "Invent an example record. Answer in JSON."}]
A_OR_NOTHING = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"type": "string", "enum": ["x", "y"]}, {"type": "null"}]}},
    "required": ["a"],
    "additionalProperties": False,
}


def chat(server: Any, **fields: Any) -> Any:
    extra = {k: fields.pop(k) for k in list(fields) if k in EXTRA_FIELDS}
    settings: dict[str, Any] = {"max_tokens": 150, "temperature": 0, "messages": MESSAGES}
    return server.client().chat.completions.create(
        model="default", extra_body=extra, **{**settings, **fields}
    )


EXTRA_FIELDS = (
    "regex", "choice", "grammar", "json_schema", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "structured_outputs",
)  # fmt: skip


def json_schema(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "record", "schema": schema, **more}}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_json_01_json_02_json_03_every_answer_is_valid(server: Any, name: str) -> None:
    """``scripts/check_schemas.py`` asks more often."""
    assert ask(server.client(), SCHEMAS[name], n=N_ANSWERS, seed=7, temperature=1.0) == []


@pytest.mark.parametrize("model", [Order, Drawing])
def test_json_02_the_sdk_parses_into_pydantic_models(server: Any, model: Any) -> None:
    reply = server.client().chat.completions.parse(
        model="default", messages=MESSAGES, response_format=model, n=3, temperature=1.0, seed=1
    )
    for choice in reply.choices:
        assert isinstance(choice.message.parsed, model)
        assert choice.finish_reason == "stop"


def test_the_sdks_stream_helper_parses_too(server: Any) -> None:
    with server.client().chat.completions.stream(
        model="default", messages=MESSAGES, response_format=Drawing, temperature=0
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion().choices[0]
    assert isinstance(final.message.parsed, Drawing)
    assert final.message.content == text
    whole = chat(server, response_format=json_schema(Drawing.model_json_schema(), strict=True))
    assert json.loads(whole.choices[0].message.content).keys() == json.loads(text).keys()


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_is_enforced_strict_or_not(server: Any, strict: bool | None) -> None:
    more = {} if strict is None else {"strict": strict}
    reply = chat(server, response_format=json_schema(A_OR_NOTHING, **more))
    assert faults_of(reply.choices[0].message.content, reply.choices[0].finish_reason,
                     A_OR_NOTHING) == []  # fmt: skip


def test_json_05_a_json_object_is_one_object_without_blanks_and_stops(server: Any) -> None:
    reply = chat(
        server,
        messages=[{"role": "user", "content": "Give me a JSON object, then explain at length."}],
        response_format={"type": "json_object"}, temperature=1.0, seed=2, max_tokens=300,
    )  # fmt: skip
    text = reply.choices[0].message.content
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    outside_strings = re.sub(r'"(\\.|[^"\\])*"?', "", text)
    assert not re.search(r"\s", outside_strings)


def test_json_06_an_answer_cut_by_max_tokens_says_length(server: Any) -> None:
    reply = chat(server, response_format=json_schema(CUSTOMER), max_tokens=5)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 5
    with pytest.raises(ValueError):
        json.loads(reply.choices[0].message.content)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "(yes|no), [0-9]{2}"}, "(yes|no), [0-9]{2}"),
        ({"guided_regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"choice": ["red", "green"]}, "red|green"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"grammar": 'root ::= "a" [0-9] "z"'}, "a[0-9]z"),
        ({"grammar": 'start: "a" /[0-9]/ "z"'}, "a[0-9]z"),
        ({"grammar": {"type": "lark", "value": 'start: "x"'}}, "x"),
        ({"guided_grammar": 'root ::= "u"'}, "u"),
        ({"json_schema": {"const": "c"}}, '"c"'),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"structured_outputs": {"choice": ["only"]}}, "only"),
        ({"response_format": {"type": "json_object", "schema": {"const": 1}}}, "1"),
    ],
    ids=str,
)
def test_fields_of_other_servers_on_both_routes(
    server: Any, fields: dict[str, Any], pattern: str
) -> None:
    reply = chat(server, **fields).choices[0]
    assert re.fullmatch(pattern, reply.message.content)
    assert reply.finish_reason == "stop"
    text = server.client().completions.create(
        model="default", prompt=["One: ", "Two: "], max_tokens=40, extra_body=fields
    )
    assert len(text.choices) == 2
    for choice in text.choices:
        assert re.fullmatch(pattern, choice.text)
        assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": json_schema({"type": "banana"})},
         "response_format.json_schema.schema.type"),
        ({"response_format": json_schema({"properties": {"a": {"not": {}}}})},
         "response_format.json_schema.schema.properties.a.not"),
        ({"response_format": json_schema("a string")},  # type: ignore[arg-type]
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "banana"}}, "response_format.type"),
        ({"grammar": '{"type": "object"}'}, "grammar"),
        ({"grammar": 'root ::= "unfinished'}, "grammar"),
        ({"regex": "(a"}, "regex"),
        ({"choice": []}, "choice"),
        ({"structured_outputs": {"json": {"type": "banana"}}}, "structured_outputs.json.type"),
        ({"regex": "a", "choice": ["b"]}, "choice"),
        ({"regex": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}b(?=c)"}, "regex"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_json_07_what_cannot_be_done_is_a_400_before_the_first_byte(
    server: Any, fields: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(server, stream=stream, **fields)
    error = refused.value
    assert error.param == param
    assert error.body["message"].startswith(f"{param}:")  # type: ignore[index]


def test_one_bad_prompt_list_is_refused_as_a_whole(server: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().completions.create(
            model="default", prompt=["a", "b"], extra_body={"regex": "(a"}
        )
    assert refused.value.param == "regex"


def test_logprobs_come_for_every_token_of_a_constrained_answer(server: Any) -> None:
    reply = chat(
        server, response_format=json_schema(A_OR_NOTHING), logprobs=True, top_logprobs=2
    ).choices[0]
    assert "".join(t.token for t in reply.logprobs.content) == reply.message.content


def test_leaving_a_constrained_stream_ends_it(server: Any) -> None:
    with chat(server, regex="[a-z ]{3000}", stream=True, max_tokens=1500) as stream:
        next(iter(stream))
    assert wait_idle(server).is_idle
