"""Hermes: ``<tool_call>{"name": …, "arguments": …}</tool_call>``.

Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, SmolLM3 and many others; also what models without a form
of their own are asked to write.
"""

from __future__ import annotations

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import read_call, read_calls
from ferrum_local.llm.dialects.lark import Lark
from ferrum_local.llm.dialects.reader import Reader, Reading
from ferrum_local.llm.dialects.sink import Sink

OPENING = "<tool_call>"
CLOSING = "</tool_call>"


class HermesCalls(CallSyntax):
    triggers = (OPENING,)
    markers = (CLOSING,)

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match(OPENING)
        yield from reader.space()
        if not (yield from read_calls(reader, sink)):
            return False
        while True:  # some models put several into one pair of marks
            end = reader.pos
            yield from reader.space()
            if (yield from reader.match(CLOSING)):
                return True
            if not (yield from read_call(reader, sink)):
                reader.pos = end
                return True

    def lark(self, lark: Lark) -> list[CallForm]:
        call = lark.calls(lambda i, tool: lark.json_call(i, tool, "name", "arguments"))
        rest = f"{lark.line()} {call} {lark.line()} {lark.mark(CLOSING)}"
        again = lark.repeated(f"{lark.line()} {lark.mark(OPENING)} {rest}")
        return [CallForm(OPENING, f"{rest} {again}")]
