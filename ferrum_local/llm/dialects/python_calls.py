"""Calls as Python writes them, ``[name(key="value"), …]``: Llama 4, Llama 3.2 pythonic, LFM2,
Olmo 3; and ``tool_code`` blocks, which prompts for Gemma 3 ask for."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import read_calls, read_name
from ferrum_local.llm.dialects.lark import Lark, pattern, text
from ferrum_local.llm.dialects.reader import Reader, Reading
from ferrum_local.llm.dialects.sink import ALPHANUMERIC, Sink
from ferrum_local.llm.dialects.tools import Tool, is_required
from ferrum_local.llm.dialects.values import ObjectWriter, python_value, read_expression


@dataclass(frozen=True)
class PythonCalls(CallSyntax):
    """Calls with keyword arguments whose values are Python literals; JSON's are read too.

    :param opening: the mark before them; empty: the answer begins with them.
    :param listed: they stand in square brackets; else each has a line of its own.
    """

    opening: str = ""
    closing: str = ""
    listed: bool = True

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.opening,) if self.opening else ()

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.closing,) if self.closing else ()

    @property
    def bare(self) -> bool:
        return not self.opening

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match(self.opening)
        yield from reader.space()
        start = reader.pos
        if self.opening and (yield from read_calls(reader, sink)):  # LFM2 writes JSON if asked to
            if sink.complete and self.closing:
                yield from reader.close(self.closing)
            return True
        reader.pos = start
        if self.listed and not (yield from reader.match("[")):
            return False
        yield from reader.space()
        if not (yield from read_python_call(reader, sink)):
            return False
        while sink.complete:
            end = reader.pos
            yield from reader.space()
            if self.listed:
                yield from reader.match(",")
                yield from reader.space()
            if not (yield from read_python_call(reader, sink)):
                reader.pos = end
                break
        if sink.complete and (not self.listed or (yield from reader.close("]"))) and self.closing:
            yield from reader.close(self.closing)
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        def one(i: int, tool: Tool) -> str:
            return f'{text(tool.name + "(")} {lark_keywords(lark, i, tool)} ")"'

        call = lark.calls(one)
        if not self.listed:
            calls = f"LF? {lark.several(call, separator='LF')} LF?"
            lark.rules["LF"] = r"/\n/"
        elif self.opening:
            comma = f'"," {lark.space()}'
            calls = f'LF? "[" {lark.several(call, separator=comma)} "]" LF?'
            lark.rules["LF"] = r"/\n/"
        else:
            return [self._bare_form(lark)]
        closing = lark.mark(self.closing) if self.closing else ""
        return [CallForm(self.opening, f"{calls} {closing}")]

    def _bare_form(self, lark: Lark) -> CallForm:
        """The first call's beginning has to be one lexeme, beside free text of that beginning."""
        firsts = []
        for i, tool in enumerate(lark.tools):
            lark.rules[f"FIRST_{i}"] = rf"/\s{{0,2}}\[{pattern(tool.name)}\(/"
            firsts.append(f'FIRST_{i} {lark_keywords(lark, i, tool)} ")"')
        comma = f'"," {lark.space()}'
        calls = f'({" | ".join(firsts)}) {lark.repeated(f"{comma} call")} "]"'
        names = "|".join(pattern(tool.name) for tool in lark.tools)
        return CallForm("", calls, rf"\s*\[(?:{names})\(")


def lark_keywords(lark: Lark, i: int, tool: Tool) -> str:
    """Keyword arguments in the schema's order, their values in JSON, which is read as well."""
    arguments = [
        (
            f"{text(name + '=')} {lark.json(f'keyword_{i}_{j}', tool.part(schema))}",
            is_required(tool.schema, name),
        )
        for j, (name, schema) in enumerate(tool.properties.items())
    ]
    return lark.in_order(arguments, separator=f'"," {lark.space()}')


def read_python_call(reader: Reader, sink: Sink, name: str | None = None) -> Reading[bool]:
    """``name(key=value, …)``; from the bracket on where the ``name`` was read before.

    Each argument is given on when it is complete; one that is no literal breaks the call.
    """
    if name is None:
        name = yield from read_name(reader, sink)
    if name is None or not (yield from reader.match("(")):
        return False
    yield from reader.space()
    writer = ObjectWriter(sink)
    if (yield from reader.match(")")):
        sink.begin_call(name)
        writer.end()
        return True
    begun = False
    while True:
        key = yield from reader.while_in(ALPHANUMERIC + "_")
        yield from reader.space()
        if not key or not (yield from reader.match("=")):
            break
        expression = yield from read_expression(reader, ",)")
        value = None if expression is None else python_value(expression)
        if value is None:
            break
        if not begun:
            sink.begin_call(name)
            begun = True
        writer.key(key)
        writer.value(value)
        end_or_comma = reader.take(1)
        yield from reader.space()
        if end_or_comma == ")" or (yield from reader.match(")")):
            writer.end()
            return True
    if begun:
        sink.complete = False
    return begun
