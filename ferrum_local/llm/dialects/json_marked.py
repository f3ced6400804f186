"""Calls as JSON between marks: Hermes and Qwen, Granite, Phi-4, Command R, Nemotron and others."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import CallForm, CallSyntax
from ferrum_local.llm.dialects.json_calls import read_call, read_calls
from ferrum_local.llm.dialects.lark import Lark
from ferrum_local.llm.dialects.reader import Reader, Reading
from ferrum_local.llm.dialects.sink import Sink


@dataclass(frozen=True)
class MarkedJson(CallSyntax):
    """``opening {"name": …, "arguments": …} closing``, or an array of such objects.

    Both are read, with either pair of keys. The fields say what the family is asked to write.

    :param closing: empty where the answer just ends.
    :param listed: an array, even for one call.
    :param lines: the JSON has a line of its own.
    :param numbered: calls begin with a ``tool_call_id``.
    :param also: further marks that may stand for ``opening``.
    """

    opening: str
    closing: str = ""
    listed: bool = False
    lines: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    numbered: bool = False
    also: tuple[str, ...] = ()

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.opening, *self.also)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.closing,) if self.closing else ()

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        yield from reader.match_any(self.triggers)
        yield from reader.space()
        if not (yield from read_calls(reader, sink)):
            return False
        while sink.complete:  # some models put several into one pair of marks
            if self.closing and (yield from reader.close(self.closing)):
                break
            end = reader.pos
            yield from reader.space()
            if not (yield from read_call(reader, sink)):
                reader.pos = end
                break
        return True

    def lark(self, lark: Lark) -> list[CallForm]:
        before = f'"\\"tool_call_id\\":" {lark.space()} /"[0-9]{{1,3}}",/' if self.numbered else ""
        call = lark.calls(
            lambda i, tool: lark.json_call(
                i, tool, self.name_key, self.arguments_key, before=before
            )
        )
        line = lark.line() if self.lines else ""
        body = lark.listed(call) if self.listed else call
        rest = f"{line} {body} {line} {lark.mark(self.closing) if self.closing else ''}"
        if not self.listed and self.closing:
            rest += " " + lark.repeated(f"{lark.line()} {lark.mark(self.opening)} {rest}")
        return [CallForm(mark, rest) for mark in self.triggers]


HERMES = MarkedJson("<tool_call>", "</tool_call>", lines=True)
"""Hermes 2 and 3, Qwen 2.5 and 3, Granite 4, SmolLM3; also what models without a form of their own
are asked to write."""

GRANITE_3 = MarkedJson("<|tool_call|>", listed=True, also=("<tool_call>",))  # 3.1 writes the latter
COMMAND_R = MarkedJson(
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    listed=True,
    name_key="tool_name",
    arguments_key="parameters",
    numbered=True,
)
NEMOTRON = MarkedJson("<TOOLCALL>", "</TOOLCALL>", listed=True)
APRIEL = MarkedJson("<tool_calls>", "</tool_calls>", listed=True)
FUNCTOOLS = MarkedJson("functools", listed=True)  # FireFunction


def phi_4_mini(*, listed: bool) -> MarkedJson:
    """Microsoft's own template says nothing of the form; what the model writes is an array."""
    return MarkedJson("<|tool_call|>", "<|/tool_call|>", listed=listed)
