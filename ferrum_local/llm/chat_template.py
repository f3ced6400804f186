"""Turning a conversation into the prompt text of one model, with the model's own template.

A template from a model file may refuse a conversation or leave parts of it out. Both are
noticed: each conversation is first rendered with marks in place of its texts, and rearranged
(see :mod:`ferrum_local.llm.message_fitting`) until the template takes it and shows every mark.
Content is data throughout: Jinja syntax in a message is never evaluated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ferrum_local.errors import InvalidRequest, Unsupported
from ferrum_local.llm.message_fitting import Message, normalise
from ferrum_local.llm.template_budget import Budget, BudgetExceeded
from ferrum_local.llm.template_environment import (
    SandboxedTemplate,
    TemplateRefused,
    TemplateUnusable,
)
from ferrum_local.llm.template_probe import PROBE_TOOL, learn_abilities, render_fitted

_LOG = logging.getLogger(__name__)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_END = "<|im_end|>"


def _probe_time() -> datetime:
    return datetime(2024, 7, 26, 12)


class ChatTemplate:
    """A model's chat template, or ChatML where it has none that works.

    Made once per model (it tries the template out); ``render`` may be called from any
    number of threads.

    :param source: the template's text, as in the model file.
    :param bos_token: text of the token that begins a prompt; empty if there is none.
    :param special_tokens: further token texts by the name that templates know them by,
        such as ``pad_token``.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str,
        eos_token: str,
        special_tokens: Mapping[str, str] = {},
        log: logging.Logger = _LOG,
    ) -> None:
        self._log = log
        self._tokens = {**special_tokens, "bos_token": bos_token, "eos_token": eos_token}
        self._fallback_reason: str | None = None
        try:
            if not source or not source.strip():
                raise TemplateUnusable("the model has no chat template")
            self._adopt(source)
        except TemplateUnusable as unusable:
            self._fallback_reason = str(unusable)
            log.warning("Using the ChatML chat template: %s", self._fallback_reason)
            self._adopt(CHATML)

    @property
    def fallback(self) -> bool:
        """True: this is ChatML, because the model's own template is missing or unusable."""
        return self._fallback_reason is not None

    @property
    def description(self) -> str:
        """Which template this is, for a person."""
        if self._fallback_reason is None:
            return "the model's own template"
        return f"ChatML ({self._fallback_reason})"

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Text that ends an answer, where the model's end token may not be what ends one."""
        return (CHATML_END,) if self.fallback else ()

    @property
    def supports_system(self) -> bool:
        """The template has a place for a system message; else its text goes to the user's."""
        return self._abilities.supports_system

    @property
    def uses_tools(self) -> bool:
        """The template writes tool definitions into the prompt; else ``tools`` has no effect."""
        return self._abilities.uses_tools

    def reads(self, variable: str) -> bool:
        """Whether the template looks at ``variable`` anywhere."""
        return variable in self._template.variables

    @property
    def supports_tool_calls(self) -> bool:
        """The template has a form for an assistant's past tool calls; else they become text."""
        return not self._abilities.dialect.calls_as_text

    @property
    def supports_tool_role(self) -> bool:
        """The template renders tool messages; else they become labelled user messages."""
        return not self._abilities.dialect.results_as_user

    @property
    def content_parts(self) -> bool:
        """The template reads content only as a list of parts."""
        return self._abilities.dialect.content_parts

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] = {},
        now: Callable[[], datetime] = datetime.now,
    ) -> str:
        """The prompt for the next answer.

        A trailing assistant message without tool calls is continued: the prompt ends in its
        content. ``template_kwargs`` are variables for the template, such as ``enable_thinking``.

        :param now: what the template's ``strftime_now`` formats.
        :raises InvalidRequest: with the template's own words when it refuses the conversation
            in every arrangement, or naming the field that cannot be honoured.
        """
        if not messages:
            raise InvalidRequest("messages: expected at least one message", param="messages")
        conversation = normalise(messages)
        prefill = ""
        if conversation[-1]["role"] == "assistant" and "tool_calls" not in conversation[-1]:
            if conversation[-1].get("reasoning_content"):
                path = f"messages[{len(messages) - 1}].reasoning_content"
                raise Unsupported(
                    f"{path}: a message that is to be continued can have content only", param=path
                )
            prefill = conversation.pop()["content"]
        variables = {**self._checked(template_kwargs), "tools": list(tools) or None}
        try:
            prompt, n_lost = render_fitted(
                conversation, self._abilities.dialect, self._renderer(variables, now=now)
            )
        except TemplateRefused as refused:
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {refused}", param="messages"
            ) from refused
        except BudgetExceeded as exceeded:
            raise InvalidRequest(
                f"The model's chat template was stopped while rendering: {exceeded}",
                param="messages",
            ) from exceeded
        if n_lost:
            self._log.warning(
                "The model's chat template leaves out %d text(s) of this conversation.", n_lost
            )
        return prompt + prefill

    def _checked(self, template_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        reserved = {"messages", "tools", "add_generation_prompt", *self._tokens}
        for name in template_kwargs:
            if name in reserved or name in self._template.global_names:
                raise InvalidRequest(
                    f"chat_template_kwargs.{name}: this name is taken; templates get it from "
                    f"the server",
                    param=f"chat_template_kwargs.{name}",
                )
        return template_kwargs

    def _renderer(
        self,
        variables: Mapping[str, Any],
        *,
        now: Callable[[], datetime] = _probe_time,
    ) -> Callable[[list[Message]], str]:
        """A function that renders messages with everything else set, on one budget."""
        budget = Budget()
        # What Hugging Face always sets; a template asks ``documents is not none``.
        given = {"documents": None, "add_generation_prompt": True, **variables, **self._tokens}

        def render(messages: list[Message]) -> str:
            return self._template.render({**given, "messages": messages}, now=now, budget=budget)

        return render

    def _adopt(self, source: str) -> None:
        self._template = SandboxedTemplate(source)
        try:
            self._abilities = learn_abilities(
                render=self._renderer({"tools": None}),
                render_with_tool=self._renderer({"tools": [PROBE_TOOL]}),
            )
        except BudgetExceeded as exceeded:
            raise TemplateUnusable(f"the model's template was stopped: {exceeded}") from exceeded
