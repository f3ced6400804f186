"""Harmony, the format of gpt-oss: an answer is a series of messages, each with a channel.

``openai-harmony`` parses it too, but fetches its vocabulary over the network when it is loaded; a
server that works offline cannot rely on that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ferrum_local.llm.dialects.answer import Format
from ferrum_local.llm.dialects.json_calls import begin_and_copy
from ferrum_local.llm.dialects.lark import Lark, pattern, text
from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import Sink
from ferrum_local.llm.dialects.tools import Tool

_START, _END, _CALL, _RETURN = "<|start|>", "<|end|>", "<|call|>", "<|return|>"
_CHANNEL, _CONSTRAIN, _MESSAGE = "<|channel|>", "<|constrain|>", "<|message|>"
_ROLE = "assistant"
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(_CHANNEL) + r"\s*([a-z]+)")
_MAX_HEADER_CHARS = 400
_MAX_THOUGHTS = 8  # messages before a call or the final one, in a grammar
_BETWEEN = "\n\n"  # messages of one kind, joined
_HEADER_STARTS = (_CHANNEL, f"{_START}{_ROLE}", " to=", "to=")
_BODY_ENDS = Marks([_END, _CALL, _RETURN, _START])


@dataclass(frozen=True)
class HarmonyFormat(Format):
    """``analysis`` is reasoning; ``final`` and ``commentary`` are content; a recipient is called.

    A message to anyone but a known tool stays text, header and all.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        return (_START, _END, _CALL, _RETURN, _CHANNEL, _CONSTRAIN, _MESSAGE)

    def read(
        self, reader: Reader, sink: Sink, *, reasoning: bool, prompt_tail: str
    ) -> Reading[None]:
        starts = Marks([_CHANNEL, _START])
        n_thoughts = n_contents = 0
        opened = _open_header(prompt_tail)
        while True:
            start = reader.pos
            header = opened or (yield from _read_header(reader))
            opened = ""
            written = reader.between(start, reader.pos)  # nothing of what the prompt has
            if header is None:
                reader.pos = start
                if (yield from reader.match_any(starts.texts)):
                    sink.text(reader.between(start, reader.pos))
                if not (yield from reader.until(starts, sink.text)):
                    return
                continue
            channel = _CHANNEL_NAME.search(header)
            if recipient := _RECIPIENT.search(header):
                if not (yield from _read_call(reader, sink, recipient.group(1))):
                    sink.text(written)
                    yield from reader.until(starts, sink.text)
            elif channel and channel.group(1) == "analysis":
                if reasoning and n_thoughts:
                    sink.think(_BETWEEN)
                n_thoughts += 1
                yield from _read_thought(reader, sink, written, separate=reasoning)
            else:
                if n_contents:
                    sink.text(_BETWEEN)
                n_contents += 1
                yield from _skip_end((yield from reader.until(_BODY_ENDS, sink.text)), reader)

    def lark(self, lark: Lark, prompt_tail: str) -> str:
        channel, message = lark.mark(_CHANNEL), lark.mark(_MESSAGE)
        next_message = f"{lark.mark(_START)} {text(_ROLE)}"
        thought_end, remark_end = lark.thought(_END), lark.up_to("remark", _END)
        thought = f'{channel} "analysis" {message} {thought_end} {next_message}'
        remark = f'{channel} "commentary" {message} {remark_end} {next_message}'
        as_json = f'(" " {lark.mark(_CONSTRAIN)}? "json")? {message}'

        def one(i: int, tool: Tool) -> str:
            name = f"to=functions.{tool.name}"
            arguments = f"{as_json} {lark.arguments(i, tool)}"
            return (
                f"{channel} {text(f'commentary {name}')} {arguments}"
                f' | {text(f" {name}")} {channel} "commentary" {arguments}'
            )

        opened = f"{thought_end} {next_message}" if _open_header(prompt_tail) else ""
        several = f"{{0,{_MAX_THOUGHTS}}}"
        if lark.max_thought_tokens is None:
            thoughts = f"{opened} ({thought}){several}"
            turn = f"{opened} (({thought}) | ({remark})){several}"
        else:  # the limit is that of one message
            thoughts = opened or f"({thought})?"
            turn = f"{thoughts} ({remark}){several}"
        final = f'{channel} "final" (" "? {lark.mark(_CONSTRAIN)} "json")? {message}'
        token = lark.special(_RETURN)
        ending = f"{token}?" if token else ""
        if not lark.tools:
            return f"{thoughts} {final} {lark.answer or lark.free()} {ending}"
        # The end mark of a call ends the model's turn: there is one call in an answer.
        call = f"{lark.calls(one)} {lark.mark(_CALL)}?"
        if lark.forced or lark.answer:
            other = "" if lark.forced else f" | {final} {lark.answer} {ending}"
            return f"{thoughts} ({call}{other})"
        plain = lark.free(rf" ?to=functions\.|{pattern(_CHANNEL)}")
        return f"{turn} ({call} | {final} ANY {ending}) | {f'ANY {ending}' if opened else plain}"


def _open_header(prompt_tail: str) -> str:
    """The header of a message that the template began for the model; empty: it began none."""
    header = prompt_tail[prompt_tail.rfind(_START) :]
    return header if prompt_tail.endswith(_MESSAGE) and header.startswith(_START) else ""


def _read_header(reader: Reader) -> Reading[str | None]:
    """A message's header, up to its body; None: something else comes next."""
    start = reader.pos
    if not (yield from reader.match_any(_HEADER_STARTS)):
        return None
    while not (yield from reader.match(_MESSAGE)):
        if reader.pos - start > _MAX_HEADER_CHARS or not (yield from reader.peek()):
            return None
        reader.pos += 1
    return reader.between(start, reader.pos)


def _read_call(reader: Reader, sink: Sink, name: str) -> Reading[bool]:
    start = reader.pos
    yield from reader.space()
    if name in sink.tools and (yield from begin_and_copy(reader, sink, name)):
        if sink.complete:
            yield from reader.close(_CALL)
        return True
    reader.pos = start
    return False


def _read_thought(reader: Reader, sink: Sink, written: str, *, separate: bool) -> Reading[None]:
    """:param written: the header, for where the thought stays in the content."""
    sink.in_reasoning = True
    if not separate:
        sink.text(written)
    mark = yield from reader.until(_BODY_ENDS, sink.think if separate else sink.text)
    yield from _skip_end(mark, reader)
    if not mark:
        return
    sink.in_reasoning = False
    if separate:
        sink.end_thought()
    elif mark != _START:
        sink.text(mark)


def _skip_end(mark: str, reader: Reader) -> Reading[None]:
    """Read over the mark behind a body, unless it begins the next header."""
    if mark and mark != _START:
        yield from reader.match(mark)
