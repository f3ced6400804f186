"""Arguments that are not written as JSON, turned into JSON as they arrive."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import Sink
from ferrum_local.llm.dialects.tools import is_text

_MAX_EXPRESSION_CHARS = 100_000  # what Python's parser is given
_MAX_DEPTH = 100
_NAMES = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def as_json(value: object) -> str:
    """:raises ValueError: for a number that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


class ObjectWriter:
    """Writes the arguments of a call, one after another, as the text of one object."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._separator = "{"

    def key(self, name: str) -> None:
        self._sink.arguments(f"{self._separator}{as_json(name)}: ")
        self._separator = ", "

    def value(self, text: str) -> None:
        self._sink.arguments(text)

    def inner(self) -> ObjectWriter:
        """A writer for an object inside of this one."""
        return ObjectWriter(self._sink)

    def end(self) -> None:
        self._sink.arguments("{}" if self._separator == "{" else "}")


def read_string(reader: Reader, writer: ObjectWriter, closing: str, *, trim: bool) -> Reading[bool]:
    """Write what comes before ``closing`` as a JSON string; False: the text ended before.

    :param trim: a line break right before ``closing`` belongs to the form.
    """
    held = ""

    def give(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if trim and text.endswith("\n") else ""
        writer.value(as_json(text[: len(text) - len(held)])[1:-1])

    writer.value('"')
    if not (yield from reader.until(Marks([closing]), give, give_begun=False)):
        return False
    reader.take(len(closing))
    writer.value('"')
    return True


def plain_value(text: str, schema: Mapping[str, Any]) -> str:
    """Text without quotes as JSON: what fits the schema, and a string where nothing else does."""
    if is_text(schema):
        return as_json(text)
    value: object = text
    if text in _NAMES:  # Python's words too: some templates let Jinja print the value
        value = _NAMES[text]
    else:
        try:
            value = json.loads(text)
            return as_json(value if _may_be(value, schema) else text)
        except (ValueError, RecursionError):
            return as_json(text)
    return as_json(value if _may_be(value, schema) else text)


def _may_be(value: object, schema: Mapping[str, Any]) -> bool:
    """Whether the schema's types leave room for ``value``; true where it names none."""
    kinds = set(_types(schema))
    if not kinds or not isinstance(value, (int, float)) or isinstance(value, bool):
        return not kinds or _type(value) in kinds
    whole = isinstance(value, int) or value.is_integer()
    return "number" in kinds or (whole and "integer" in kinds)


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    kind = schema.get("type")
    yield from [kind] if isinstance(kind, str) else kind or ()
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key, ()):
            if isinstance(part, Mapping):
                yield from _types(part)


def _type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "number"


def read_expression(reader: Reader, ends: str) -> Reading[str | None]:
    """A Python expression up to one of ``ends`` outside of brackets and strings (not read over)."""
    start = reader.pos
    depth = 0
    while char := (yield from reader.peek()):
        if char in "\"'":
            if not (yield from _skip_python_string(reader)):
                return None
            continue
        if depth == 0 and char in ends:
            return reader.between(start, reader.pos)
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return None
        reader.pos += 1
    return None


def _skip_python_string(reader: Reader) -> Reading[bool]:
    quote = reader.take(1)
    while char := (yield from reader.peek()):
        reader.pos += 1
        if char == quote:
            return True
        if char == "\\":
            if not (yield from reader.peek()):
                return False
            reader.pos += 1
    return False


def python_value(text: str) -> str | None:
    """A Python literal as JSON, with JSON's own words allowed; None: it is none."""
    if len(text) > _MAX_EXPRESSION_CHARS:
        return None
    try:
        return as_json(_literal(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr, depth: int = 0) -> object:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(node, ast.Constant) and isinstance(
        node.value, (str, int, float, bool, type(None))
    ):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_literal(key, depth + 1)): _literal(value, depth + 1)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _literal(node.operand, depth + 1)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            return -number
    raise ValueError("not a literal")
