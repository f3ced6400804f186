"""Reasoning: the part of an answer, before the answer proper, in which a model thinks aloud."""

from __future__ import annotations

from typing import NamedTuple

from ferrum_local.llm.dialects.lark import Lark, pattern
from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.sink import Sink


class Thinking(NamedTuple):
    """The marks around reasoning. ``answer``: marks that some put around what follows it."""

    opening: str
    closing: str
    answer: tuple[str, str] | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing, *(self.answer or ()))

    @property
    def signs(self) -> tuple[str, ...]:
        """What a template shows that writes them; line breaks are written in other ways there."""
        return tuple(mark.strip() for mark in self.markers)

    def is_open(self, prompt_tail: str) -> bool:
        """The template began the block; the answer starts inside of it."""
        return prompt_tail.rstrip().endswith(self.opening.rstrip())

    def is_closed(self, prompt_tail: str) -> bool:
        """The template ended the block: there is to be no reasoning."""
        return prompt_tail.rstrip().endswith(self.closing)


THINK = Thinking("<think>", "</think>")

# By the opening mark that a template shows; the first one found counts.
KNOWN = (
    Thinking("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
    Thinking(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),  # Command A and R7B
    Thinking("<|channel>thought\n", "<channel|>"),  # Gemma 4
    Thinking("<seed:think>", "</seed:think>"),  # Seed-OSS
    Thinking("<thought>", "</thought>"),  # EXAONE Deep
    Thinking("<think>", "</think>", ("<response>", "</response>")),  # Granite 3.3
    Thinking("Here is my thought process:", "Here is my response:"),  # Granite 3.2
)


def read_thought(
    reader: Reader, sink: Sink, thinking: Thinking, *, opened: bool, separate: bool
) -> Reading[bool]:
    """Read reasoning, if the answer begins with some; False: it does not.

    :param separate: tell it apart; else it becomes content, marks and all.
    """
    if not opened:
        start = reader.pos
        yield from reader.space()
        if not (yield from reader.match(thinking.opening)):
            reader.pos = start
            return False
        if not separate:
            sink.text(reader.between(start, reader.pos))
    sink.in_reasoning = True
    mark = yield from reader.until(Marks([thinking.closing]), sink.think if separate else sink.text)
    if not mark:
        return True
    reader.take(len(mark))
    sink.in_reasoning = False
    if not separate:
        sink.text(mark)
        return True
    sink.end_thought()
    yield from reader.while_in("\r\n")
    return True


def lark_thought(lark: Lark, thinking: Thinking, *, opened: bool) -> str:
    """The block in a grammar: from the opening mark on, or from inside of it."""
    rest = f"{lark.thought(thinking.closing)} {lark.gap()}"
    if thinking.answer:
        rest += f" ({lark.mark(thinking.answer[0])} {lark.gap()})?"
    return rest if opened else f"{lark.mark(thinking.opening)} {rest}"


def not_thought(lark: Lark, thinking: Thinking) -> str:
    """How text may not begin where it would be reasoning, as a regular expression."""
    return "" if lark.special(thinking.opening) else rf"\s*{pattern(thinking.opening)}"
