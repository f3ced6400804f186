"""Constraints as llguidance grammars, and the limits that keep one from growing out of hand.

A grammar is a list of parts, as llguidance takes it: the first begins, and ``@name`` in the
text of one stands for the one of that name.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ferrum_local.errors import InvalidRequest
from ferrum_local.llm.schema_numbers import BEYOND, with_safe_numbers
from ferrum_local.types import Constraint

# llguidance is imported where it is used: a server starts sooner, and is 4 MB smaller for those
# who never ask for a grammar.
if TYPE_CHECKING:
    from llguidance import LLParserLimits

GrammarParts: TypeAlias = list[dict[str, Any]]

# No space between the tokens of JSON: a small model cannot ramble there, and what it would
# cost in tokens is saved. It goes into each JSON schema, also those inside of a Lark text.
COMPACT_JSON = {"whitespace_flexible": False, "lenient": False}
_OPTIONS_KEY = "x-guidance"

MAX_TEXT = 65_536  # characters of a regex, a Lark or a GBNF text, or of all choices
MAX_SCHEMA_BYTES = 1_048_576
# The library goes down rules and subschemas by recursion. With these, the deepest way fits
# into the stack of the thread that compiles (``constraint.STACK_BYTES``), several times over.
MAX_RULES = 1_000
MAX_SCHEMA_OBJECTS = 10_000

_EMBEDDED = re.compile(r"%json\s*")
_LONG_NUMBER = re.compile(r"\d{16}|\d[eE]")

_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_][\w.-]*[^\n:\"/]*:", re.MULTILINE)


@functools.cache
def limits() -> LLParserLimits:
    """How complex a grammar may be.

    Masks are computed on the decode thread. At 20,000 items and 14,000 units of fuel a
    millisecond, one that reaches a limit took some 20 ms; ordinary ones take 0.1 to 0.5 ms.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=1_000,
        step_max_items=10_000,
        max_grammar_size=50_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


def grammar_of(constraint: Constraint) -> GrammarParts:
    """The grammar for a constraint; faults inside of it are found only when it is compiled.

    :raises InvalidRequest: a value of the wrong form or size, or a GBNF text with a fault.
    """
    value, param = constraint.value, constraint.param
    if constraint.kind == "json_object":
        return [{"json_schema": compact({"type": "object"})}]
    if constraint.kind == "json_schema":
        _check_schema(value, param)
        return [{"json_schema": compact(with_safe_numbers(value, param))}]
    if constraint.kind == "choice":
        return [{"lark_grammar": _choice(value, param)}]
    if not isinstance(value, str):
        raise _invalid(param, "expected string")
    _check_text(value, param)
    if constraint.kind == "regex":
        from llguidance import LLMatcher

        parts: GrammarParts = msgspec.json.decode(LLMatcher.grammar_from_regex(value))["grammars"]
        return parts
    text = _from_gbnf(value, param) if constraint.kind == "gbnf" else value
    if len(_RULE.findall(text)) > MAX_RULES:
        raise _invalid(param, f"expected at most {MAX_RULES} rules")
    _check_embedded_schemas(text, param)
    return [{"lark_grammar": text}]


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with our JSON style; options that it brings itself are left out."""
    return {**schema, _OPTIONS_KEY: COMPACT_JSON}


def json_rule(schema: dict[str, Any]) -> str:
    """A JSON schema as it is written inside of a Lark rule: ``%json {…}``."""
    safe = with_safe_numbers(schema, "schema")
    return f"%json {msgspec.json.encode(compact(safe)).decode()}"


def quoted(text: str) -> str:
    """A text as it is written inside of a Lark rule."""
    return msgspec.json.encode(text).decode()


def framed(grammar: GrammarParts, frame: str) -> GrammarParts:
    """A grammar that is part of another one.

    :param frame: a Lark text in which ``@answer`` stands for ``grammar``.
    """
    if not grammar:
        return [{"lark_grammar": frame}]
    answer, *rest = grammar
    return [{"lark_grammar": frame}, {**answer, "name": "answer"}, *rest]


def encoded(grammar: GrammarParts) -> str:
    """What the matcher takes."""
    return msgspec.json.encode({"grammars": grammar}).decode()


def _choice(value: Any, param: str) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        raise _invalid(param, "expected non-empty list of strings")
    for i, text in enumerate(value):
        if not isinstance(text, str):
            raise _invalid(f"{param}[{i}]", "expected string")
    _check_text("\n".join(value), param)
    # One terminal, so that a choice may be the beginning of another.
    return f"start: CHOICE\nCHOICE: {' | '.join(quoted(text) for text in value)}\n"


def _from_gbnf(text: str, param: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise _invalid(param, "the grammar is nested too deeply") from None
    except Exception as error:  # the converter has no class of its own for some faults
        raise _invalid(param, one_line(str(error))) from error


def _check_schema(schema: Any, param: str) -> None:
    if not isinstance(schema, dict):
        raise _invalid(param, "expected object")
    n_objects = 0
    todo: list[Any] = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            n_objects += 1
            todo.extend(value.values())
        elif isinstance(value, (list, tuple)):
            todo.extend(value)
    if n_objects > MAX_SCHEMA_OBJECTS:
        raise _invalid(param, f"expected at most {MAX_SCHEMA_OBJECTS} objects in the schema")
    try:
        n_bytes = len(msgspec.json.encode(schema))
    except (RecursionError, UnicodeEncodeError, TypeError) as error:
        raise _invalid(param, one_line(str(error))) from error
    if n_bytes > MAX_SCHEMA_BYTES:
        raise _invalid(param, f"expected at most {MAX_SCHEMA_BYTES} bytes, got {n_bytes}")


def _check_embedded_schemas(text: str, param: str) -> None:
    """Of a Lark text: they come to the same code as others."""
    for found in _EMBEDDED.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            if _LONG_NUMBER.search(text, found.end()):
                raise _invalid(param, BEYOND) from None
            continue  # that it is no JSON is told when it is compiled
        if isinstance(schema, dict) and with_safe_numbers(schema, param) != schema:
            raise _invalid(param, BEYOND)


def _check_text(text: str, param: str) -> None:
    if len(text) > MAX_TEXT:
        raise _invalid(param, f"expected at most {MAX_TEXT} characters, got {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(param, error.reason) from error


def one_line(message: str, n_most: int = 300) -> str:
    """A library's message for a person: on one line, of a sane length."""
    text = " ".join(message.replace("<non-verbose/>", "").split())
    return text if len(text) <= n_most else text[:n_most] + "…"


def _invalid(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {problem}", param=param)
