"""FunctionGemma and Gemma 4: ``call:name{key:value,…}`` between marks, strings between quotes that
are tokens of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import read_name
from ferrum_local.llm.dialects.lark import Lark, any_text, text
from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import Sink
from ferrum_local.llm.dialects.tools import (
    Tool,
    count,
    is_required,
    is_text,
    listed_values,
    properties_of,
)
from ferrum_local.llm.dialects.values import ObjectWriter, as_json, read_string

_CALL = "call:"
_MAX_DEPTH = 50


@dataclass(frozen=True)
class BraceCalls(CallSyntax):
    """:param quote: stands before and behind a string."""

    opening: str
    closing: str
    quote: str

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.closing, self.quote)

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match(self.opening)
        yield from reader.space()
        if not (yield from reader.match(_CALL)):
            return False
        name = yield from read_name(reader, sink)
        if name is None or not (yield from reader.match("{")):
            return False
        sink.begin_call(name)
        sink.complete = yield from self._read_object(reader, ObjectWriter(sink), 0)
        if sink.complete:
            yield from reader.close(self.closing)
        return True

    def _read_object(self, reader: Reader, writer: ObjectWriter, depth: int) -> Reading[bool]:
        """What follows an opening brace, up to the closing one; False: it broke or was cut."""
        yield from reader.space()
        while not (yield from reader.match("}")):
            key = yield from self._read_key(reader)
            if key is None:
                return False
            writer.key(key)
            if not (yield from self._read_value(reader, writer, depth)):
                return False
            yield from reader.space()
            yield from reader.match(",")
            yield from reader.space()
        writer.end()
        return True

    def _read_key(self, reader: Reader) -> Reading[str | None]:
        quoted = yield from reader.match(self.quote)
        start = reader.pos
        end = self.quote if quoted else ":"
        if not (yield from reader.until(Marks([end]))):
            return None
        key = reader.between(start, reader.pos)
        reader.take(len(end))
        if quoted and not (yield from reader.match(":")):
            return None
        return key if quoted else key.strip()

    def _read_value(self, reader: Reader, writer: ObjectWriter, depth: int) -> Reading[bool]:
        yield from reader.space()
        if depth > _MAX_DEPTH:
            return False
        if (yield from reader.match(self.quote)):
            return (yield from read_string(reader, writer, self.quote, trim=False))
        if (yield from reader.match("{")):
            return (yield from self._read_object(reader, writer.inner(), depth + 1))
        if (yield from reader.match("[")):
            return (yield from self._read_list(reader, writer, depth + 1))
        start = reader.pos
        while (char := (yield from reader.peek())) and char not in ",}]":
            reader.pos += 1
        word = reader.between(start, reader.pos).strip()
        if not char or not word:
            return False
        writer.value(_unquoted(word))
        return True

    def _read_list(self, reader: Reader, writer: ObjectWriter, depth: int) -> Reading[bool]:
        writer.value("[")
        yield from reader.space()
        separator = ""
        while not (yield from reader.match("]")):
            writer.value(separator)
            separator = ", "
            if not (yield from self._read_value(reader, writer, depth)):
                return False
            yield from reader.space()
            yield from reader.match(",")
            yield from reader.space()
        writer.value("]")
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        def one(i: int, tool: Tool) -> str:
            body = self._lark_object(lark, tool, tool.schema, f"{i}")
            return f"{text(_CALL + tool.name)} {body}"

        closing = lark.mark(self.closing)
        again = lark.repeated(f"{lark.mark(self.opening)} call {closing}")
        return [CallForm(self.opening, f"{lark.calls(one)} {closing} {again}")]

    def _lark_object(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], path: str) -> str:
        members = [
            (
                f"{text(name + ':')} {self._lark_value(lark, tool, part, f'{path}_{j}')}",
                is_required(schema, name),
            )
            for j, (name, part) in enumerate(properties_of(schema).items())
        ]
        return f'"{{" {lark.in_order(members, separator=text(","))} "}}"'

    def _lark_value(self, lark: Lark, tool: Tool, schema: Mapping[str, Any], path: str) -> str:
        """A value of a schema: texts, numbers, words, and lists and objects of these.

        Where the schema says none of these, any value of the syntax is let through.
        """
        quote = lark.mark(self.quote)
        if values := listed_values(schema):
            words = [
                f"{quote} {text(value)} {quote}" if isinstance(value, str) else text(as_json(value))
                for value in values
            ]
            return f"({' | '.join(words)})"
        if is_text(schema):
            return f"{quote} {lark.regex_up_to(f'text_{path}', any_text(schema), self.quote)}"
        if choices := _choices(schema):
            parts = [
                self._lark_value(lark, tool, choice, f"{path}_{j}")
                for j, choice in enumerate(choices)
            ]
            return f"({' | '.join(parts)})"
        if (definition := tool.definition(schema)) is not None:
            name, shared = definition
            rule = f"shared_{path.partition('_')[0]}_{name.encode().hex()}"
            if rule not in lark.rules:
                lark.rules[rule] = ""  # it may refer to itself
                lark.rules[rule] = self._lark_value(lark, tool, shared, f"{path}_s")
            return rule
        kind = schema.get("type")
        if kind in ("integer", "number", "boolean", "null"):
            return lark.json(f"plain_{path}", schema)
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            item = lark.rule(
                f"item_{path}", self._lark_value(lark, tool, schema["items"], f"{path}_i")
            )
            low, high = count(schema, "minItems") or 0, count(schema, "maxItems")
            more = f'("," {item}){{{max(low - 1, 0)},{"" if high is None else max(high - 1, 0)}}}'
            return f'"[" {f"{item} {more}" if low else f"({item} {more})?"} "]"'
        if kind == "object" and properties_of(schema):
            return self._lark_object(lark, tool, schema, path)
        return self._lark_any(lark)

    def _lark_any(self, lark: Lark) -> str:
        if "any_value" not in lark.rules:
            string = (
                f"{lark.mark(self.quote)} {lark.regex_up_to('any_text', '(?s:.*)', self.quote)}"
            )
            plain = lark.json("any_plain", {"type": ["number", "boolean", "null"]})
            lark.rules["ANY_KEY"] = r"/[A-Za-z0-9_\-]{1,64}:/"
            lark.rules["any_value"] = (
                f'{string} | {plain} | "[" (any_value ("," any_value)*)? "]"'
                ' | "{" (ANY_KEY any_value ("," ANY_KEY any_value)*)? "}"'
            )
        return "any_value"


def _choices(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas of which one has to fit."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    for key in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list):
            return [part for part in parts if isinstance(part, Mapping)]
    return []


def _unquoted(word: str) -> str:
    """A number or a word as JSON; other text as a string, since some templates print it so."""
    try:
        return as_json(json.loads(word))
    except (ValueError, RecursionError):
        return as_json({"True": True, "False": False, "None": None}.get(word, word))


FUNCTION_GEMMA = BraceCalls("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = BraceCalls("<|tool_call>", "<tool_call|>", '<|"|>')
