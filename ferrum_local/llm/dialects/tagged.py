"""Calls with a tag for each argument: Qwen3-Coder and Nemotron 3, Seed-OSS, GLM; and Functionary
3.1, which has a tag for the function alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import begin_and_copy, read_calls, read_name
from ferrum_local.llm.dialects.lark import Lark, any_text, text
from ferrum_local.llm.dialects.reader import SPACE, Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import Sink
from ferrum_local.llm.dialects.tools import Tool, is_required, is_text, listed_values
from ferrum_local.llm.dialects.values import ObjectWriter, plain_value, read_string

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


@dataclass(frozen=True)
class FunctionTags(CallSyntax):
    """``<function=name>`` with ``<parameter=key>value</parameter>`` or with a JSON object inside.

    Both are read, with or without the outer marks, and so is a JSON call inside of those.

    :param opening: the mark around it; empty: none is written.
    :param json: the family writes JSON.
    :param lines: tags and values have lines of their own.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    json: bool = False
    lines: bool = True

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.opening, _FUNCTION) if self.opening else (_FUNCTION,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.closing,) if self.closing else ()

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        marked = False
        if self.opening and (yield from reader.match(self.opening)):
            marked = True
            yield from reader.space()
        if marked and (yield from reader.peek()) in ("{", "["):
            begun = yield from read_calls(reader, sink)
        else:
            begun = yield from _read_function(reader, sink)
        if not begun:
            return False
        if marked and sink.complete:
            yield from reader.close(self.closing)
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        line = "\n" if self.lines else ""

        def value(i: int, j: int, tool: Tool, schema: Mapping[str, Any]) -> str:
            return lark_plain_value(lark, f"value_{i}_{j}", tool, schema, line + _PARAMETER_END)

        def one(i: int, tool: Tool) -> str:
            if self.json or not tool.is_plain:
                return f"{text(tool.name + '>')} {lark.arguments(i, tool)} {text(_FUNCTION_END)}"
            parameters = [
                f"({text(f'{_PARAMETER}{name}>{line}')} {value(i, j, tool, schema)} LF?)"
                + ("" if is_required(tool.schema, name) else "?")
                for j, (name, schema) in enumerate(tool.properties.items())
            ]
            lark.rules["LF"] = r"/\n/"
            return f"{text(tool.name + '>')} LF? {' '.join(parameters)} {text(_FUNCTION_END)}"

        call = lark.calls(one)
        if not self.opening:
            again = lark.repeated(f"{lark.line()} {lark.mark(_FUNCTION)} {call}")
            return [CallForm(_FUNCTION, f"{call} {again}")]
        head = f"{lark.line()} {lark.mark(_FUNCTION)}"
        marked = f"{head} {call} {lark.line()} {lark.mark(self.closing)}"
        again = lark.repeated(f"{lark.line()} {lark.mark(self.opening)} {marked}")
        return [CallForm(self.opening, f"{marked} {again}"), CallForm(_FUNCTION, call)]


def _read_function(reader: Reader, sink: Sink) -> Reading[bool]:
    if not (yield from reader.match(_FUNCTION)):
        return False
    name = yield from read_name(reader, sink)
    if name is None or not (yield from reader.match(">")):
        return False
    yield from reader.space()
    if (yield from reader.peek()) == "{":
        if not (yield from begin_and_copy(reader, sink, name)):
            return False
        if sink.complete:
            yield from reader.close(_FUNCTION_END)
        return True
    tag = yield from reader.match_any((_FUNCTION_END, _PARAMETER))
    if not tag:
        return False
    sink.begin_call(name)
    writer = ObjectWriter(sink)
    while tag == _PARAMETER:
        key = yield from _up_to(reader, ">")
        if key is None or not (yield from _read_value(reader, writer, sink.tools[name], key)):
            sink.complete = False
            return True
        tag = yield from _next_tag(reader, sink, (_PARAMETER, _FUNCTION_END))
    if sink.complete:
        writer.end()
    return True


def _next_tag(reader: Reader, sink: Sink, tags: Sequence[str]) -> Reading[str]:
    """Read over the tag that comes next; an empty string, with the cursor where it was: none."""
    start = reader.pos
    yield from reader.space()
    tag = yield from reader.match_any(tags)
    if not tag:
        rest = reader.rest()
        sink.complete = not any(tag.startswith(rest) for tag in tags)  # else the answer was cut
        reader.pos = start if sink.complete else reader.pos + len(rest)
    return tag


def _read_value(reader: Reader, writer: ObjectWriter, tool: Tool, key: str) -> Reading[bool]:
    schema = tool.properties.get(key, {})
    writer.key(key)
    yield from reader.match("\n")
    if is_text(schema):
        return (yield from read_string(reader, writer, _PARAMETER_END, trim=True))
    value = yield from _up_to(reader, _PARAMETER_END)
    if value is None:
        return False
    writer.value(plain_value(value.removesuffix("\n"), schema))
    return True


@dataclass(frozen=True)
class ArgumentTags(CallSyntax):
    """GLM 4.5 and later: a name, then pairs of ``<arg_key>`` and ``<arg_value>``."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.opening,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.closing, _KEY, _KEY_END, _VALUE, _VALUE_END)

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match(self.opening)
        yield from reader.space()
        if (yield from reader.peek()) in ("{", "["):
            begun = yield from read_calls(reader, sink)
            if begun and sink.complete:
                yield from reader.close(self.closing)
            return begun
        name = yield from read_name(reader, sink)
        yield from reader.space()
        tag = "" if name is None else (yield from reader.match_any((_KEY, self.closing)))
        if name is None or not tag:
            return False
        sink.begin_call(name)
        writer = ObjectWriter(sink)
        while tag == _KEY:
            if not (yield from self._read_argument(reader, writer, sink.tools[name])):
                sink.complete = False
                return True
            tag = yield from _next_tag(reader, sink, (_KEY, self.closing))
        if sink.complete:
            writer.end()
        return True

    def _read_argument(self, reader: Reader, writer: ObjectWriter, tool: Tool) -> Reading[bool]:
        key = yield from _up_to(reader, _KEY_END)
        if key is None or not (yield from reader.close(_VALUE)):
            return False
        schema = tool.properties.get(key.strip(SPACE), {})
        writer.key(key.strip(SPACE))
        if is_text(schema):
            return (yield from read_string(reader, writer, _VALUE_END, trim=False))
        value = yield from _up_to(reader, _VALUE_END)
        if value is None:
            return False
        writer.value(plain_value(value.strip(SPACE), schema))
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        lark.rules["LF"] = r"/\n/"

        def argument(i: int, j: int, tool: Tool, name: str, schema: Mapping[str, Any]) -> str:
            value = lark_plain_value(lark, f"value_{i}_{j}", tool, schema, _VALUE_END)
            key = f"{lark.mark(_KEY)} {text(name)} {lark.mark(_KEY_END)}"
            optional = "" if is_required(tool.schema, name) else "?"
            return f"({key} LF? {lark.mark(_VALUE)} {value} LF?){optional}"

        def one(i: int, tool: Tool) -> str:
            arguments = [
                argument(i, j, tool, name, schema)
                for j, (name, schema) in enumerate(tool.properties.items())
            ]
            return f"{text(tool.name)} LF? {' '.join(arguments)} {lark.mark(self.closing)}"

        call = lark.calls(one)
        again = lark.repeated(f"LF? {lark.mark(self.opening)} {call}")
        return [CallForm(self.opening, f"{call} {again}")]


def _up_to(reader: Reader, mark: str) -> Reading[str | None]:
    """The text before ``mark``, which is read over; None: the text ended."""
    start = reader.pos
    if not (yield from reader.until(Marks([mark]))):
        return None
    value = reader.between(start, reader.pos)
    reader.take(len(mark))
    return value


def lark_plain_value(
    lark: Lark, name: str, tool: Tool, schema: Mapping[str, Any], closing: str
) -> str:
    """A value without quotes and the mark that closes it.

    A schema for strings alone is held as far as ``enum``, ``const``, lengths and patterns go. One
    that allows strings and more is written as JSON.
    """
    end = lark.mark(closing)
    if not is_text(schema):
        return f"{lark.json(name, tool.part(schema))} {end}"
    if values := listed_values(schema):
        return f"({' | '.join(map(text, values))}) {end}"
    expression = schema.get("pattern")
    if isinstance(expression, str):
        start, stop = expression.startswith("^"), expression.endswith("$")
        body = expression[start : len(expression) - stop]
        free = "(?s:.*)"
        regex = f"{'' if start else free}(?:{_slashed(body)}){'' if stop else free}"
    else:
        regex = any_text(schema)
    return lark.regex_up_to(name, regex, closing)


def _slashed(expression: str) -> str:
    """A regular expression for use inside ``/…/``."""
    return expression.replace("\\/", "/").replace("/", "\\/")
