"""How one model writes what is not plain text: calls of tools and reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrum_local.llm.dialects.answer import Format, StreamParser
from ferrum_local.llm.dialects.interface import OutputParser
from ferrum_local.llm.dialects.lark import FREE, Lark
from ferrum_local.llm.dialects.preamble import tool_preamble
from ferrum_local.llm.dialects.sink import Sink, random_call_id, random_short_id
from ferrum_local.llm.dialects.tools import tools_of


@dataclass(frozen=True)
class Dialect:
    """The syntax of a family of models; :func:`ferrum_local.llm.dialects.detect` finds it.

    ``markers`` are texts that may be control tokens of the vocabulary. The parser has to see
    them as text.
    """

    name: str
    format: Format
    short_ids: bool = False  # ids of nine letters and digits, which Mistral's templates demand

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.format.markers))

    def parser(
        self,
        *,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str,
        tool_name: str | None,
        reasoning: bool,
        prompt_tail: str,
    ) -> OutputParser:
        """A parser for one answer.

        A call that breaks off, because the answer was cut, keeps the arguments that it had; one
        whose arguments had not begun stays text, as do calls of unknown tools.

        :param reasoning: tell it apart; else it stays in the content.
        :param prompt_tail: the end of the rendered prompt, some 200 characters: whether the
            template opened the reasoning itself.
        """
        allowed = tools_of(tools, choice=tool_choice, name=tool_name)
        sink = Sink(allowed, random_short_id if self.short_ids else random_call_id)
        return StreamParser(
            sink,
            lambda reader: self.format.read(
                reader, sink, reasoning=reasoning, prompt_tail=prompt_tail
            ),
        )

    def grammar(
        self,
        *,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str,
        tool_name: str | None,
        parallel: bool,
        special: Callable[[str], str | None],
        prompt_tail: str,
        reasoning: bool,
        answer: str = "",
        max_thought_tokens: int | None = None,
    ) -> str | None:
        """An llguidance Lark grammar for the whole answer; None: nothing is to be enforced.

        A demanded call comes at once, or after the reasoning of a model that thinks. Else text is
        free until a call begins, and what follows is a call of a known tool with arguments that fit
        its schema.

        :param special: how a special token is written in the grammar, such as ``<tool_call>`` or
            ``<[123]>``; None: the text is ordinary text in this vocabulary.
        :param reasoning: has no effect: a model thinks in either case.
        :param answer: a Lark expression that the answer's text has to fit, such as ``@answer``;
            demanded calls leave no room for text.
        :param max_thought_tokens: close the reasoning after so many.
        :raises Unsupported: this model's reasoning cannot be limited.
        """
        lark = Lark(
            tools=tools_of(tools, choice=tool_choice, name=tool_name),
            forced=tool_choice == "required" or tool_name is not None,
            parallel=parallel,
            special=special,
            answer=answer,
            max_thought_tokens=max_thought_tokens,
        )
        if not lark.tools and not answer and max_thought_tokens is None:
            return None
        start = self.format.lark(lark, prompt_tail).strip()
        if not lark.tools and start in (answer, FREE):
            return None  # no more than what the answer is anyway
        return lark.render(start)

    def preamble(
        self,
        tools: Sequence[Mapping[str, Any]],
        tool_choice: str,
        tool_name: str | None,
        parallel: bool,
    ) -> str:
        """System text about the tools, for a template that does not render them itself."""
        return tool_preamble(tools, tool_choice, tool_name, parallel)
