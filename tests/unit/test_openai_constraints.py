"""The fields that constrain an answer, as the engine gets them."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.constraints import constraint_of
from ferrum_local.http.openai.schemas import ChatCompletionRequest, CompletionRequest
from ferrum_local.http.openai.validation import parse_request
from ferrum_local.types import Constraint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'


def chat(**fields: Any) -> Constraint | None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return constraint_of(parse_request(body, ChatCompletionRequest))


def text(**fields: Any) -> Constraint | None:
    return constraint_of(parse_request({"prompt": "Hi", **fields}, CompletionRequest))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert error.value.status == 400
    return error.value


@pytest.mark.parametrize("of", [chat, text])
@pytest.mark.parametrize(
    ("fields", "kind", "value", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None, "response_format"),
        (
            {"response_format": {"type": "json_schema",
                                 "json_schema": {"name": "x", "strict": False, "schema": SCHEMA}}},
            "json_schema", SCHEMA, "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA,
         "response_format.schema"),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA,
         "response_format.schema"),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA, "json_schema"),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA, "guided_json"),
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"choice": ["a", "b"]}, "choice", ("a", "b"), "choice"),
        ({"guided_choice": ["a"]}, "choice", ("a",), "guided_choice"),
        ({"grammar": GBNF}, "gbnf", GBNF, "grammar"),
        ({"grammar": LARK}, "lark", LARK, "grammar"),
        ({"guided_grammar": GBNF}, "gbnf", GBNF, "guided_grammar"),
        ({"grammar": {"type": "regex", "value": "a+"}}, "regex", "a+", "grammar.value"),
        ({"grammar": {"type": "json", "value": SCHEMA}}, "json_schema", SCHEMA, "grammar.value"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA,
         "structured_outputs.json"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ("a",), "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": True}}, "json_object", None,
         "structured_outputs.json_object"),
    ],
)  # fmt: skip
def test_every_field_becomes_one_constraint(
    of: Any, fields: dict[str, Any], kind: str, value: Any, param: str
) -> None:
    assert of(**fields) == Constraint(kind=kind, value=value, param=param)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": {"type": "text"}}, {"grammar": ""}, {"structured_outputs": {}},
     {"regex": None, "response_format": None}],
)  # fmt: skip
def test_nothing_given_constrains_nothing(fields: dict[str, Any]) -> None:
    assert chat(**fields) is None


def test_two_constraints_are_refused_naming_both() -> None:
    error = refused(regex="a", response_format={"type": "json_object"})
    assert error.param == "regex"
    assert "response_format" in error.message
    assert refused(choice=["a"], structured_outputs={"regex": "b"}).param is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "a string"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "text", "json_schema": {"schema": SCHEMA}}},
         "response_format.type"),
        ({"grammar": {"type": "regex", "value": {}}}, "grammar.value"),
        ({"grammar": {"type": "json", "value": "{}"}}, "grammar.value"),
    ],
)  # fmt: skip
def test_json_07_a_schema_that_is_missing_or_none_is_named(
    fields: dict[str, Any], param: str
) -> None:
    assert refused(**fields).param == param
