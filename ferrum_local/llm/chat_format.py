"""How one chat model is talked to: prompts by its template, answers by its dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ferrum_local.errors import Unsupported
from ferrum_local.llm.chat_template import ChatTemplate
from ferrum_local.llm.constraint import AnswerForm, mark_in_lark
from ferrum_local.llm.dialects import OutputParser, detect
from ferrum_local.llm.message_fitting import SEPARATOR
from ferrum_local.llm.model import LlamaModel
from ferrum_local.llm.schema_numbers import with_safe_numbers
from ferrum_local.types import ChatPrompt, Constraint

_TAIL_CHARS = 200  # of a prompt: enough to see whether the template opened a block of reasoning

# What templates call the switch that turns reasoning on and off.
_THINKING_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
_DEFAULT_EFFORTS = ("none", "medium")  # which say no more than that nothing special is wanted


class ChatFormat:
    """Made once a model; may be used by any number of threads.

    ``hidden`` are control tokens that the dialect uses as marks, and their texts.
    """

    def __init__(self, model: LlamaModel, template: ChatTemplate) -> None:
        self._model = model
        self._template = template
        source = None if template.fallback else model.chat_template
        self._dialect = detect(source, renders_tools=template.uses_tools)
        control = _control_tokens(model, self._dialect.markers)
        self._texts = {token: model.token_bytes(token, special=True) for token in control}
        self.hidden = {
            token: data.decode("utf-8", "replace") for token, data in self._texts.items()
        }
        self._marks = {mark: mark_in_lark(model, mark) for mark in self._dialect.markers}

    def token_bytes(self, token: int) -> bytes:
        """As the model's own, but marks of the dialect are text, for its parser to see."""
        text = self._texts.get(token)
        return self._model.token_bytes(token) if text is None else text

    # -- prompts -------------------------------------------------------------------------

    def render(self, prompt: ChatPrompt) -> str:
        """The text that the model sees.

        :raises InvalidRequest: the template refuses the conversation, or has no place for what
            is asked of it.
        """
        messages = prompt.messages
        tools = () if prompt.tool_choice == "none" else prompt.tools
        if tools and not self._template.uses_tools:
            preamble = self._dialect.preamble(
                tools, prompt.tool_choice, prompt.tool_name, self._is_parallel(prompt)
            )
            messages, tools = _with_preamble(messages, preamble), ()
        return self._template.render(
            messages, tools=tools, template_kwargs=self._template_kwargs(prompt)
        )

    def _template_kwargs(self, prompt: ChatPrompt) -> Mapping[str, Any]:
        """The client's own, and what its reasoning options mean to this template."""
        wanted: dict[str, Any] = {}
        effort = prompt.reasoning.effort
        if effort is not None and self._template.reads(_EFFORT):
            wanted[_EFFORT] = effort
        thinks = None if effort is None else effort != "none"
        if prompt.reasoning.budget_tokens == 0:
            thinks = False
        if thinks is not None:
            wanted |= {name: thinks for name in _THINKING_SWITCHES if self._template.reads(name)}
        if effort is not None and effort not in _DEFAULT_EFFORTS and not wanted:
            raise Unsupported(
                f"{_EFFORT}: the model's chat template has no such setting", param=_EFFORT
            )
        return {**wanted, **prompt.template_kwargs}

    # -- answers -------------------------------------------------------------------------

    def parsers(self, prompt: ChatPrompt, text: str) -> Callable[[], OutputParser]:
        """What makes the parser of one answer to ``text``, which ``prompt`` was rendered to."""

        def new_parser() -> OutputParser:
            return self._dialect.parser(
                tools=prompt.tools,
                tool_choice=prompt.tool_choice,
                tool_name=prompt.tool_name,
                reasoning=prompt.reasoning.separate,
                prompt_tail=text[-_TAIL_CHARS:],
            )

        return new_parser

    def answer_form(
        self, prompt: ChatPrompt, text: str, constraint: Constraint | None
    ) -> AnswerForm | None:
        """What an answer to ``text`` has to match: reasoning if any, then calls or the constraint.

        :raises Unsupported: the reasoning of this model cannot be limited.
        :raises InvalidRequest: a tool's parameters that no grammar can keep.
        """
        for i, tool in enumerate(prompt.tools):
            with_safe_numbers(tool["function"]["parameters"], _parameters_of(i))
        frame = self._dialect.grammar(
            tools=prompt.tools,
            tool_choice=prompt.tool_choice,
            tool_name=prompt.tool_name,
            parallel=self._is_parallel(prompt),
            special=self._written,
            prompt_tail=text[-_TAIL_CHARS:],
            reasoning=prompt.reasoning.separate,
            answer="" if constraint is None else "@answer",
            max_thought_tokens=prompt.reasoning.budget_tokens,
        )
        if frame is None:
            return None if constraint is None else AnswerForm(constraint)
        has_answer = "@answer" in frame.splitlines()[1]  # not where calls are demanded
        return AnswerForm(
            constraint if has_answer else None,
            frame,
            "tools" if prompt.tools else "reasoning_budget_tokens",
            tuple(
                Constraint(
                    kind="json_schema",
                    value=tool["function"]["parameters"],
                    param=_parameters_of(i),
                )
                for i, tool in enumerate(prompt.tools)
            ),
        )

    def _is_parallel(self, prompt: ChatPrompt) -> bool:
        """A model that does not know tools cannot tell when it has called enough of them, nor can
        any that is made to call a certain one."""
        if prompt.parallel_tool_calls is None:
            return self._template.uses_tools and prompt.tool_name is None
        return prompt.parallel_tool_calls

    def _written(self, text: str) -> str | None:
        """How a grammar writes the special token ``text``; None: there is none."""
        written = self._marks.get(text)
        return written if written is not None and written.startswith("<") else None


def _parameters_of(i: int) -> str:
    return f"tools[{i}].function.parameters"


def _control_tokens(model: LlamaModel, markers: tuple[str, ...]) -> frozenset[int]:
    """The control tokens that ``markers`` are written with."""
    return frozenset(
        token
        for marker in markers
        for token in model.tokenize(marker, add_special=False, parse_special=True)
        if not model.token_bytes(token) and model.token_bytes(token, special=True)
    )


def _with_preamble(
    messages: tuple[dict[str, Any], ...], preamble: str
) -> tuple[dict[str, Any], ...]:
    if not preamble:
        return messages
    if messages and messages[0]["role"] == "system":
        content = SEPARATOR.join(filter(None, (messages[0].get("content"), preamble)))
        return ({**messages[0], "content": content}, *messages[1:])
    return ({"role": "system", "content": preamble}, *messages)
