"""Answers as most families write them: reasoning, then text with calls in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ferrum_local.llm.dialects.interface import ParsedDelta
from ferrum_local.llm.dialects.lark import Lark
from ferrum_local.llm.dialects.reader import Marks, Reader, Reading
from ferrum_local.llm.dialects.reasoning import (
    THINK,
    Thinking,
    lark_thought,
    not_thought,
    read_thought,
)
from ferrum_local.llm.dialects.sink import Sink


class CallForm(NamedTuple):
    """One way to write calls in a grammar.

    ``mark`` begins it and ``rest`` is what follows. An empty ``mark``: the call stands alone, and
    text that begins like ``prefix`` (a regular expression) has to be one.
    """

    mark: str
    rest: str
    prefix: str = ""


class CallSyntax(ABC):
    """How a family writes calls."""

    @property
    def triggers(self) -> tuple[str, ...]:
        """Marks that a call begins with; none is part of another."""
        return ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Further marks that may be control tokens."""
        return ()

    @property
    def bare(self) -> bool:
        """A call may also begin without a mark, where the answer begins or after another call."""
        return False

    @abstractmethod
    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        """Read a call, the cursor being at its mark; False: it is none, and nothing was given on.

        True as soon as part of a call was given on; the cursor is then behind what belongs to it.
        """

    @abstractmethod
    def lark(self, lark: Lark) -> list[CallForm]:
        """The ways to write calls; the first one is what a demanded call is written in."""


@dataclass(frozen=True)
class EitherCalls(CallSyntax):
    """Calls in the form that the model is asked for, or in another one that it may know."""

    asked: CallSyntax
    known: CallSyntax

    @property
    def triggers(self) -> tuple[str, ...]:
        return (*self.asked.triggers, *self.known.triggers)

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.asked.markers, *self.known.markers)

    def read(self, reader: Reader, sink: Sink) -> Reading[bool]:
        start = reader.pos
        asked = yield from reader.match_any(self.asked.triggers)
        reader.pos = start
        return (yield from (self.asked if asked else self.known).read(reader, sink))

    def lark(self, lark: Lark) -> list[CallForm]:
        return self.asked.lark(lark)


class Format(ABC):
    """How a family's whole answer is laid out."""

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens and that the reading has to see."""

    @abstractmethod
    def read(
        self, reader: Reader, sink: Sink, *, reasoning: bool, prompt_tail: str
    ) -> Reading[None]:
        """Read the answer to its end."""

    @abstractmethod
    def lark(self, lark: Lark, prompt_tail: str) -> str:
        """The start rule of a grammar for the answer: calls, if there are tools, or text."""


@dataclass(frozen=True)
class PlainFormat(Format):
    """Reasoning first, if any; then text, with calls where their marks are.

    :param thinks: the template knows of reasoning, so a grammar has to let the model do it.
    """

    syntax: CallSyntax
    thinking: Thinking = THINK
    thinks: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.syntax.triggers, *self.syntax.markers, *self.thinking.markers)

    def read(
        self, reader: Reader, sink: Sink, *, reasoning: bool, prompt_tail: str
    ) -> Reading[None]:
        opened = self.thinking.is_open(prompt_tail)
        yield from read_thought(reader, sink, self.thinking, opened=opened, separate=reasoning)
        dropped = ""
        if reasoning and self.thinking.answer:
            begin, end = self.thinking.answer
            if (yield from reader.match(begin)):
                dropped = end
        triggers = self.syntax.triggers if sink.tools else ()
        if begun := self._begun(prompt_tail) if sink.tools else "":
            reader.prepend(begun)
            start = reader.pos + len(begun)
            if not (yield from self.syntax.read(reader, sink)):
                reader.pos = start
        marks = Marks((*triggers, dropped) if dropped else triggers)
        fresh = True
        while True:
            start = reader.pos
            if fresh and self.syntax.bare and sink.tools:
                yield from reader.space()
                if (yield from self.syntax.read(reader, sink)):
                    continue
                reader.pos = start
            fresh = False
            mark = yield from reader.until(marks, sink.text)
            start = reader.pos
            if not mark:
                return
            if mark == dropped:
                reader.take(len(mark))
            elif (yield from self.syntax.read(reader, sink)):
                fresh = True
            else:
                reader.pos = start
                sink.text(reader.take(len(mark)))

    def _begun(self, prompt_tail: str) -> str:
        """The mark of a call that the prompt ends with."""
        ends = (mark for mark in self.syntax.triggers if prompt_tail.rstrip().endswith(mark))
        return next(ends, "")

    def lark(self, lark: Lark, prompt_tail: str) -> str:
        opened = self.thinking.is_open(prompt_tail)
        may_think = self.thinks and not self.thinking.is_closed(prompt_tail)
        thought = ""
        if opened or may_think:
            thought = lark_thought(lark, self.thinking, opened=opened)
            thought = thought if opened else f"({thought})?"
        unmarked = not_thought(lark, self.thinking) if thought and not opened else ""
        if not lark.tools:
            return f"{thought} {lark.answer or lark.free(unmarked)}"
        forms = self.syntax.lark(lark)
        begun = self._begun(prompt_tail)
        if rest := next((form.rest for form in forms if begun and form.mark == begun), ""):
            return rest
        if lark.forced or lark.answer:
            call = f"{lark.mark(forms[0].mark) if forms[0].mark else ''} {forms[0].rest}"
            return f"{thought} {call if lark.forced else f'({call} | {lark.answer})'}"
        excluded = [form.prefix for form in forms if form.prefix]
        if unmarked:
            excluded.append(unmarked)
        free = lark.free("|".join(excluded))
        answers = [free]
        for i, form in enumerate(forms):
            head = lark.up_to(f"head_{i}", form.mark, free) if form.mark else ""
            answers.append(f"{head} {form.rest}")
        answer = f"{thought} {lark.rule('answer', ' | '.join(answers))}"
        return f"{answer} | {free}" if opened else answer  # it may stop while it thinks


class StreamParser:
    """Runs a format's reading over text as it arrives."""

    def __init__(self, sink: Sink, read: Callable[[Reader], Reading[None]]) -> None:
        self._sink = sink
        self._reader = Reader()
        self._reading = read(self._reader)
        self._advance()

    def push(self, text: str) -> ParsedDelta:
        if text:
            self._reader.feed(text)
            self._advance()
        return self._sink.drain()

    def finish(self) -> ParsedDelta:
        self._reader.ended = True
        self._advance()
        self._sink.finish()
        return self._sink.drain()

    @property
    def n_tool_calls(self) -> int:
        return self._sink.n_calls

    @property
    def in_reasoning(self) -> bool:
        return self._sink.in_reasoning

    def _advance(self) -> None:
        next(self._reading, None)
