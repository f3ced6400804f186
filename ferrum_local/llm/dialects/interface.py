"""What the rest of the runtime sees of a dialect's parser."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ferrum_local.types import ToolCallDelta


class ParsedDelta(NamedTuple):
    """What some text turned out to be."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class OutputParser(Protocol):
    """Tells content, reasoning and tool calls of one answer apart, as its text arrives.

    However the text is split, the joined results are the same. Text without calls or
    reasoning comes out unchanged. What was sent as part of a call is never taken back: a call
    that breaks off keeps the arguments it had.
    """

    def push(self, text: str) -> ParsedDelta:
        """Take the next piece of the answer."""
        ...

    def finish(self) -> ParsedDelta:
        """Release what was held back; once, when the answer ended."""
        ...

    @property
    def n_tool_calls(self) -> int: ...

    @property
    def in_reasoning(self) -> bool:
        """The last character belongs to reasoning, whether or not that is told apart."""
        ...
