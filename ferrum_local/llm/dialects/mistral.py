"""Mistral: ``[TOOL_CALLS]`` with an array of objects, or newer with ``name[ARGS]{…}``."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import begin_and_copy, read_calls, read_name
from ferrum_local.llm.dialects.lark import Lark, text
from ferrum_local.llm.dialects.reader import Reader, Reading
from ferrum_local.llm.dialects.sink import ALPHANUMERIC, Sink
from ferrum_local.llm.dialects.tools import Tool

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


@dataclass(frozen=True)
class MistralCalls(CallSyntax):
    """All forms are read; the fields say which one the template writes.

    :param named: ``[TOOL_CALLS]name[ARGS]{…}``, since the end of 2025 or so.
    :param with_id: ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}``, as Mistral Small 3.2.
    """

    named: bool = False
    with_id: bool = False

    @property
    def triggers(self) -> tuple[str, ...]:
        return (_CALLS,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (_ID, _ARGUMENTS)

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match(_CALLS)
        yield from reader.space()
        if (yield from reader.peek()) in ("[", "{"):
            return (yield from read_calls(reader, sink))
        name = yield from read_name(reader, sink)
        if name is None:
            return False
        if (yield from reader.match(_ID)):
            yield from reader.while_in(ALPHANUMERIC)
        yield from reader.match(_ARGUMENTS)
        yield from reader.space()
        return (yield from begin_and_copy(reader, sink, name))

    def lark(self, lark: Lark) -> list[CallForm]:
        if not self.named:
            id_ = f'("," {lark.space()} "\\"id\\":" {lark.space()} /"[a-zA-Z0-9]{{9}}"/)?'
            call = lark.calls(
                lambda i, tool: lark.json_call(i, tool, "name", "arguments", after=id_)
            )
            return [CallForm(_CALLS, f"{lark.space()} {lark.listed(call)}")]

        def one(i: int, tool: Tool) -> str:
            id_ = f"{lark.mark(_ID)} /[a-zA-Z0-9]{{9}}/" if self.with_id else ""
            return f"{text(tool.name)} {id_} {lark.mark(_ARGUMENTS)} {lark.arguments(i, tool)}"

        call = lark.calls(one)
        return [CallForm(_CALLS, lark.several(call, separator=lark.mark(_CALLS)))]
