"""DeepSeek: marks with full-width bars around a name and JSON.

``begin name sep {…} end`` since V3.1; V2.5, V3 and R1 write ``begin function sep name``, a line
break and the JSON in a fenced block.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import begin_and_copy, read_name
from ferrum_local.llm.dialects.lark import Lark, text
from ferrum_local.llm.dialects.reader import Reader, Reading
from ferrum_local.llm.dialects.sink import Sink
from ferrum_local.llm.dialects.tools import Tool

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_KIND = "function"
_FENCE, _FENCE_END = "```json\n", "\n```"


@dataclass(frozen=True)
class DeepSeekCalls(CallSyntax):
    """Both forms are read.

    :param fenced: the template writes the older one.
    """

    fenced: bool = False

    @property
    def triggers(self) -> tuple[str, ...]:
        return (_ALL, _ONE)

    @property
    def markers(self) -> tuple[str, ...]:
        return (_ALL_END, _ONE_END, _SEPARATOR)

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match(_ALL)
        if not (yield from self._read_one(reader, sink)):
            return False
        while sink.complete:
            if (yield from reader.close(_ALL_END)):
                break
            end = reader.pos
            if not (yield from self._read_one(reader, sink)):
                reader.pos = end
                break
        return True

    def _read_one(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.space()
        if not (yield from reader.match(_ONE)):
            return False
        start = reader.pos
        kind = yield from reader.match(_KIND + _SEPARATOR)
        if not kind:
            reader.pos = start
        name = yield from read_name(reader, sink)
        if name is None:
            return False
        if not kind and not (yield from reader.match(_SEPARATOR)):
            return False
        yield from reader.space()
        fenced = yield from reader.match(_FENCE)
        yield from reader.space()
        if not (yield from begin_and_copy(reader, sink, name)):
            return False
        if sink.complete:
            if fenced:
                yield from reader.close("```")
            yield from reader.close(_ONE_END)
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        begin, separator = lark.mark(_ONE), lark.mark(_SEPARATOR)

        def one(i: int, tool: Tool) -> str:
            if self.fenced:
                head = f"{text(_KIND)} {separator} {text(f'{tool.name}{chr(10)}{_FENCE}')}"
                tail = text(_FENCE_END)
            else:
                head, tail = f"{text(tool.name)} {separator}", ""
            return f"{begin} {head} {lark.arguments(i, tool)} {tail} {lark.mark(_ONE_END)}"

        calls = lark.several(lark.calls(one), separator=lark.line())
        return [CallForm(_ALL, f"{calls} {lark.mark(_ALL_END)}")]
