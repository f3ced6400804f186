"""Functionary 3.2: each part of an answer is addressed, ``>>>all`` or ``>>>name`` and a line break.

The template writes the first ``>>>`` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import Format
from ferrum_local.llm.dialects.json_calls import begin_and_copy, read_name
from ferrum_local.llm.dialects.lark import Lark, text
from ferrum_local.llm.dialects.llama import read_code
from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import Sink
from ferrum_local.llm.dialects.tools import Tool

_TO = ">>>"
_EVERYONE = "all\n"


@dataclass(frozen=True)
class AddressedFormat(Format):
    """Parts are addressed with ``>>>``; in content it counts only before a known address."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (_TO,)

    def read(
        self, reader: Reader, sink: Sink, *, reasoning: bool, prompt_tail: str
    ) -> Reading[None]:
        marks = Marks([_TO])
        address_open = prompt_tail.endswith(_TO)
        while True:
            start = reader.pos
            if not address_open and not (yield from reader.match(_TO)):
                if not (yield from reader.until(marks, sink.text)):
                    return
                continue
            if not (yield from self._read_part(reader, sink)):
                reader.pos = start
                if not address_open:
                    sink.text(reader.take(len(_TO)))
            address_open = False

    def _read_part(self, reader: Reader, sink: Sink) -> Reading[bool]:
        """The address, and the call if it is one; content is left to be read."""
        if (yield from reader.match(_EVERYONE)):
            return True
        name = yield from read_name(reader, sink)
        if name is None or not (yield from reader.match("\n")):
            return False
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            return (yield from begin_and_copy(reader, sink, name))
        return (yield from read_code(reader, sink)) if name == "python" else False

    def lark(self, lark: Lark, prompt_tail: str) -> str:
        first = "" if prompt_tail.endswith(_TO) else lark.mark(_TO)
        if not lark.tools:
            return f"{first} {text(_EVERYONE)} {lark.answer or lark.free()}"

        def one(i: int, tool: Tool) -> str:
            head = text(tool.name + "\n")
            return f"{head} {lark.arguments(i, tool)}"

        call = lark.calls(one)
        calls = f"{call} {lark.repeated(f'{lark.line()} {lark.mark(_TO)} {call}')}"
        if lark.forced:
            return f"{first} {calls}"
        if lark.answer:
            return f"{first} ({calls} | {text(_EVERYONE)} {lark.answer})"
        free = lark.free()
        later = f"{lark.up_to('next_part', _TO, free)} {calls}"
        return f"{first} ({calls} | {text(_EVERYONE)} ({free} | {later}))"
