"""Learning what a chat template supports, and rendering with what it supports.

Templates refuse messages and leave them out without a word. Both are found by rendering small
conversations, and later each real one, with marks in place of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from ferrum_local.llm.message_fitting import (
    FITS,
    MARKED_ARGUMENT,
    Dialect,
    Fit,
    Message,
    arrange,
    marked,
    n_lost,
    normalise,
)
from ferrum_local.llm.template_environment import TemplateRefused, TemplateUnusable

Render: TypeAlias = Callable[[list[Message]], str]  # raises TemplateRefused

_USER: Message = {"role": "user", "content": "hello"}
_ASSISTANT: Message = {"role": "assistant", "content": "hello"}
_SYSTEM: Message = {"role": "system", "content": "hello"}
_TOOL_CALL = {"id": "call_1", "function": {"name": "f", "arguments": {"a": "b"}}}
_TOOL_HISTORY = normalise(
    [
        _USER,
        {"role": "assistant", "tool_calls": [_TOOL_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "hello"},
    ]
)
_TOOL_NAME = "zqtoolqz"
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "a",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string", "description": "a"}},
            "required": ["a"],
        },
    },
}


@dataclass(frozen=True)
class Abilities:
    """What a template supports."""

    dialect: Dialect
    supports_system: bool
    uses_tools: bool


def render_fitted(
    conversation: Sequence[Message], dialect: Dialect, render: Render
) -> tuple[str, int]:
    """Render in the least changed arrangement that keeps every text.

    Where none keeps all of them, the one that loses least is taken: leaving out old turns
    can be a template's own design.

    :returns: the prompt and how many texts it lacks.
    :raises TemplateRefused: as on the unchanged conversation, when all are refused.
    """
    sample, marks = marked(conversation)
    tried: list[list[Message]] = []
    lossy: list[tuple[int, list[Message]]] = []
    refusals: list[TemplateRefused] = []
    for fit in FITS:
        arranged = arrange(conversation, fit, dialect)
        if arranged in tried:
            continue
        tried.append(arranged)
        try:
            n = n_lost(marks, render(arrange(sample, fit, dialect)))
            if n == 0:
                return render(arranged), 0
            lossy.append((n, arranged))
        except TemplateRefused as refusal:
            refusals.append(refusal)
    for n, arranged in sorted(lossy, key=lambda entry: entry[0]):
        try:
            return render(arranged), n
        except TemplateRefused as refusal:
            refusals.append(refusal)
    raise refusals[0]


def learn_abilities(*, render: Render, render_with_tool: Render) -> Abilities:
    """Try a template out.

    :param render_with_tool: renders with ``tools`` set to :data:`PROBE_TOOL` alone.
    :raises TemplateUnusable: when it cannot render the simplest conversations.
    """
    plain = _content_dialect(render)
    _check_usable(plain, render)
    system_sample, marks = marked([_SYSTEM, _USER])
    shown = _attempt(system_sample, plain, render)
    return Abilities(
        dialect=_tool_dialect(plain, render),
        supports_system=shown is not None and n_lost(marks, shown) == 0,
        uses_tools=any(
            _TOOL_NAME in (_attempt(messages, plain, render_with_tool) or "")
            for messages in ([_USER], [_SYSTEM, _USER])
        ),
    )


def _attempt(messages: Sequence[Message], dialect: Dialect, render: Render) -> str | None:
    """The rendering of ``messages`` in their own order; None: refused."""
    try:
        return render(arrange(messages, Fit(), dialect))
    except TemplateRefused:
        return None


def _content_dialect(render: Render) -> Dialect:
    sample, marks = marked([_USER])
    for dialect in (Dialect(), Dialect(content_parts=True)):
        text = _attempt(sample, dialect, render)
        if text is not None and not n_lost(marks, text):
            return dialect
    return Dialect()


def _check_usable(dialect: Dialect, render: Render) -> None:
    """Try one turn, then three; a refusal of three in the template's own words is fine."""
    try:
        _, n = render_fitted([_USER], dialect, render)
    except TemplateRefused as refused:
        raise TemplateUnusable(f"the model's template fails: {refused}") from refused
    if n:
        raise TemplateUnusable("the model's template leaves out what the user says")
    try:
        render_fitted([_USER, _ASSISTANT, _USER], dialect, render)
    except TemplateRefused as refused:
        if not refused.deliberate:
            raise TemplateUnusable(f"the model's template fails: {refused}") from refused


def _tool_dialect(plain: Dialect, render: Render) -> Dialect:
    """The dialect in which a tool call and its result come out best."""
    sample, marks = marked(_TOOL_HISTORY)
    _, *call_marks, result_mark = marks
    chosen = replace(plain, null_content=False, calls_as_text=True, results_as_user=True)
    best: tuple[int, int] | None = None
    for short_ids, argument_text, null_content in product(
        (False, True), (False, True), (True, False)
    ):
        dialect = replace(
            plain, short_ids=short_ids, argument_text=argument_text, null_content=null_content
        )
        text = _attempt(sample, dialect, render)
        if text is None:
            continue
        score = (n_lost(marks, text), _n_blemishes(text))
        if best is None or score < best:
            best = score
            chosen = replace(
                dialect,
                calls_as_text=n_lost(call_marks, text) > 0,
                results_as_user=n_lost([result_mark], text) > 0,
            )
    return chosen


def _n_blemishes(text: str) -> int:
    """Signs of a value in a form that the template did not expect: an object as Python
    shows it, JSON inside a JSON string, or a null as the word None."""
    signs = (f"{{'{MARKED_ARGUMENT}", f'{{\\"{MARKED_ARGUMENT}', "None")
    return sum(text.count(sign) for sign in signs)
