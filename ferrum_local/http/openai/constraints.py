"""The fields that constrain an answer, OpenAI's and other servers', as the engine's ``Constraint``.

At most one may be given. What is inside of a schema or a grammar is checked by the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from ferrum_local.http.openai.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    GrammarObject,
    ResponseFormat,
    StructuredOutputs,
)
from ferrum_local.http.openai.validation import invalid, json_type
from ferrum_local.types import Constraint

# What a field holds; the text of a ``grammar`` tells itself whether it is GBNF or Lark.
FieldKind: TypeAlias = Literal["json_schema", "regex", "choice", "grammar"]

# llama.cpp's names, and vLLM's older ones.
_FIELDS: dict[str, FieldKind] = {
    "json_schema": "json_schema",
    "guided_json": "json_schema",
    "regex": "regex",
    "guided_regex": "regex",
    "choice": "choice",
    "guided_choice": "choice",
    "grammar": "grammar",
    "guided_grammar": "grammar",
}
_STRUCTURED_OUTPUTS: dict[str, FieldKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)


def constraint_of(fields: ChatCompletionRequest | CompletionRequest) -> Constraint | None:
    """:raises ApiError: 400 for more than one constraint, or one without its schema."""
    found = list(_in_fields(fields, _FIELDS, ""))
    if fields.response_format is not None:
        found = [*_response_format(fields.response_format), *found]
    if fields.structured_outputs is not None:
        found += _structured_outputs(fields.structured_outputs)
    if len(found) > 1:
        raise invalid(
            found[1].param, f"only one constraint is possible, and {found[0].param} is one already"
        )
    return found[0] if found else None


def _response_format(format_: ResponseFormat) -> Iterator[Constraint]:
    if format_.type == "text":
        if format_.json_schema is not None or format_.schema is not None:
            raise invalid("response_format.type", "expected json_schema where a schema is given")
        return
    # OpenAI has the schema in json_schema.schema, llama.cpp's server also beside the type.
    path, schema = "response_format.schema", format_.schema
    if format_.json_schema is not None or (schema is None and format_.type == "json_schema"):
        path = "response_format.json_schema"
        if format_.json_schema is not None:
            path, schema = f"{path}.schema", format_.json_schema.get("schema")
        if schema is None:
            raise invalid(path, "required, but missing", code="missing_required_parameter")
    if schema is None:
        yield Constraint(kind="json_object")
    else:
        yield _constraint("json_schema", schema, path)


def _structured_outputs(given: StructuredOutputs) -> Iterator[Constraint]:
    yield from _in_fields(given, _STRUCTURED_OUTPUTS, "structured_outputs.")
    if given.json_object:
        yield Constraint(kind="json_object", param="structured_outputs.json_object")


def _in_fields(source: object, kinds: dict[str, FieldKind], prefix: str) -> Iterator[Constraint]:
    for name, kind in kinds.items():
        value = getattr(source, name)
        if value is None or (kind == "grammar" and value == ""):  # as some clients send it
            continue
        if isinstance(value, GrammarObject):
            value_kind = "json_schema" if value.type == "json" else value.type
            yield _constraint(value_kind, value.value, f"{prefix}{name}.value")
        else:
            yield _constraint(kind, value, prefix + name)


def _constraint(kind: FieldKind | Literal["gbnf", "lark"], value: Any, path: str) -> Constraint:
    if kind == "json_schema":
        if not isinstance(value, dict):
            raise invalid(path, f"expected object, got {json_type(value)}")
    elif kind != "choice" and not isinstance(value, str):
        raise invalid(path, f"expected string, got {json_type(value)}")
    if kind == "grammar":
        kind = "gbnf" if _GBNF_RULE.search(value) else "lark"
    return Constraint(kind=kind, value=tuple(value) if kind == "choice" else value, param=path)
