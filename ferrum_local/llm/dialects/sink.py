"""Where a parser puts what it finds: content, reasoning, calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable

from ferrum_local.llm.dialects.interface import ParsedDelta
from ferrum_local.llm.dialects.reader import SPACE
from ferrum_local.llm.dialects.tools import Tool
from ferrum_local.types import ToolCallDelta

ALPHANUMERIC = string.ascii_letters + string.digits


def random_call_id() -> str:
    """An id as OpenAI writes them."""
    return "call_" + "".join(secrets.choice(ALPHANUMERIC) for _ in range(24))


def random_short_id() -> str:
    """An id that Mistral's templates accept."""
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(9))


class Sink:
    """Collects what was found until the next :meth:`drain`.

    Whitespace next to a call belongs to the call's form and is dropped; so it is held back
    until something follows. The same goes for newlines at both ends of reasoning.
    """

    def __init__(self, tools: Iterable[Tool], new_id: Callable[[], str]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.n_calls = 0
        self.complete = True  # the arguments of the last call reached their end
        self.in_reasoning = False
        self._new_id = new_id
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._held_space = ""
        self._after_call = False
        self._held_newlines = ""
        self._thought = False

    def text(self, text: str) -> None:
        """More content."""
        if not self.tools:
            self._content.append(text)
            return
        if self._after_call:
            text = text.lstrip(SPACE)
        body = text.rstrip(SPACE)
        if body:
            self._content.append(self._held_space + body)
            self._held_space = ""
            self._after_call = False
        self._held_space += text[len(body) :]

    def think(self, text: str) -> None:
        """More reasoning."""
        if not self._thought:
            text = text.lstrip("\r\n")
        body = text.rstrip("\r\n")
        if body:
            self._reasoning.append(self._held_newlines + body)
            self._held_newlines = ""
            self._thought = True
        self._held_newlines += text[len(body) :]

    def end_thought(self) -> None:
        self._held_newlines = ""

    def begin_call(self, name: str) -> None:
        self._held_space = ""
        self._after_call = True
        self.complete = True
        self._calls.append(ToolCallDelta(index=self.n_calls, id=self._new_id(), name=name))
        self.n_calls += 1

    def arguments(self, fragment: str) -> None:
        """More of the last call's arguments, as JSON text."""
        if not fragment:
            return
        self._calls.append(ToolCallDelta(index=self.n_calls - 1, arguments=fragment))

    def call(self, name: str, arguments: str) -> None:
        """A whole call."""
        self.begin_call(name)
        self.arguments(arguments)

    def finish(self) -> None:
        self._content.append(self._held_space)
        self._reasoning.append(self._held_newlines)
        self._held_space = self._held_newlines = ""

    def drain(self) -> ParsedDelta:
        delta = ParsedDelta(
            "".join(self._content), "".join(self._reasoning), tuple(_merged(self._calls))
        )
        self._content.clear()
        self._reasoning.clear()
        self._calls.clear()
        return delta


def _merged(deltas: list[ToolCallDelta]) -> list[ToolCallDelta]:
    """One delta for each call."""
    merged: list[ToolCallDelta] = []
    for delta in deltas:
        if merged and merged[-1].index == delta.index:
            last = merged.pop()
            delta = ToolCallDelta(
                index=last.index,
                id=last.id,
                name=last.name,
                arguments=last.arguments + delta.arguments,
            )
        merged.append(delta)
    return merged
