"""Llama 3: a bare ``{"name": …, "parameters": {…}}``, or ``<|python_tag|>`` and a call or code."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import read_call, read_calls
from ferrum_local.llm.dialects.lark import Lark, pattern, text
from ferrum_local.llm.dialects.python_calls import lark_keywords, read_python_call
from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import ALPHANUMERIC, Sink
from ferrum_local.llm.dialects.tools import Tool, is_text
from ferrum_local.llm.dialects.values import ObjectWriter, as_json

PYTHON_TAG = "<|python_tag|>"
_CODE_TOOLS = ("python", "ipython", "code_interpreter")  # what is given raw code, if there is one


@dataclass(frozen=True)
class LlamaCalls(CallSyntax):
    """A bare object counts where the answer begins, or behind another call and a semicolon."""

    @property
    def triggers(self) -> tuple[str, ...]:
        return (PYTHON_TAG,)

    @property
    def bare(self) -> bool:
        return True

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        tagged = yield from reader.match(PYTHON_TAG)
        yield from reader.space()
        if (yield from reader.peek()) in ("{", "["):
            if not (yield from read_calls(reader, sink)):
                return False
        elif not tagged or not (yield from _read_builtin(reader, sink)):
            return tagged and (yield from read_code(reader, sink))
        while sink.complete:
            end = reader.pos
            yield from reader.space()
            yield from reader.match(";")
            yield from reader.space()
            if not (yield from read_call(reader, sink)):
                reader.pos = end
                break
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        sp = lark.space()
        call = lark.calls(lambda i, tool: lark.json_call(i, tool, "name", "parameters"))
        firsts = []
        for i, tool in enumerate(lark.tools):
            # One lexeme, beside free text that begins the same.
            lark.rules[f"FIRST_{i}"] = rf"/\s{{0,2}}{_beginning(tool)}/"
            firsts.append(f'FIRST_{i} "," {sp} "\\"parameters\\":" {sp} arguments_{i} "}}"')
        again = lark.repeated(f'";" {sp} {call}')
        names = "|".join(_beginning(tool) for tool in lark.tools)
        tagged = [f"{call} {again}"]
        tagged += [
            f'{text(tool.name + ".call(")} {lark_keywords(lark, i, tool)} ")"'
            for i, tool in enumerate(lark.tools)
        ]
        if _code_tool({tool.name: tool for tool in lark.tools}):
            tagged.append("CODE")
            lark.rules["CODE"] = "/(?s:.+)/"
        return [
            CallForm("", f"({' | '.join(firsts)}) {again}", rf"\s*(?:{names})"),
            CallForm(PYTHON_TAG, f"({' | '.join(tagged)})"),
        ]


def _beginning(tool: Tool) -> str:
    return rf'\{{\s{{0,4}}"name"\s?:\s?{pattern(json.dumps(tool.name))}'


def _read_builtin(reader: Reader, sink: Sink) -> Reading[bool]:
    """``brave_search.call(query="…")``; also without ``.call``."""
    start = reader.pos
    name = yield from reader.while_in(ALPHANUMERIC + "_-")
    yield from reader.match(".call")
    if name in sink.tools and (yield from read_python_call(reader, sink, name)):
        return True
    reader.pos = start
    return False


def code_argument(tool: Tool) -> str | None:
    """The one argument that raw code can stand for."""
    names = [name for name, schema in tool.properties.items() if is_text(schema)]
    return names[0] if len(tool.properties) == len(names) == 1 else None


def _code_tool(tools: dict[str, Tool]) -> tuple[str, str] | None:
    for name in _CODE_TOOLS:
        if name in tools and (argument := code_argument(tools[name])):
            return name, argument
    return None


def read_code(reader: Reader, sink: Sink) -> Reading[bool]:
    """All of the rest as the code of a Python tool; False: there is none such."""
    found = _code_tool(sink.tools)
    if found is None or not (yield from reader.peek()):
        return False
    name, argument = found
    sink.begin_call(name)
    writer = ObjectWriter(sink)
    writer.key(argument)
    writer.value('"')
    yield from reader.until(Marks(()), lambda code: writer.value(as_json(code)[1:-1]))
    writer.value('"')
    writer.end()
    return True
