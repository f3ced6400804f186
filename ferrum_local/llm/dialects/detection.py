"""Which dialect a model speaks, by the text of its chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ferrum_local.llm.dialects.answer import CallSyntax, EitherCalls, Format, PlainFormat
from ferrum_local.llm.dialects.deepseek import DeepSeekCalls
from ferrum_local.llm.dialects.dialect import Dialect
from ferrum_local.llm.dialects.functionary import AddressedFormat
from ferrum_local.llm.dialects.gemma import FUNCTION_GEMMA, GEMMA_4
from ferrum_local.llm.dialects.harmony import HarmonyFormat
from ferrum_local.llm.dialects.json_marked import (
    APRIEL,
    COMMAND_R,
    FUNCTOOLS,
    GRANITE_3,
    HERMES,
    NEMOTRON,
    phi_4_mini,
)
from ferrum_local.llm.dialects.llama import LlamaCalls
from ferrum_local.llm.dialects.mistral import MistralCalls
from ferrum_local.llm.dialects.python_calls import PythonCalls
from ferrum_local.llm.dialects.reasoning import KNOWN, THINK, Thinking
from ferrum_local.llm.dialects.tagged import ArgumentTags, FunctionTags

_DEMANDS_SHORT_IDS = re.compile(r"length\s*!=\s*9|alphanumeric strings with length 9")


class _Family(NamedTuple):
    """How a family is known: all of ``signs`` are in its template."""

    name: str
    signs: Sequence[str]
    syntax: Callable[[str], CallSyntax]


def _phi_4_mini(source: str) -> CallSyntax:
    return phi_4_mini(listed="<|tool_call|>{" not in source)


# The first one that fits counts, so what is more particular comes first.
_FAMILIES = (
    _Family(
        "deepseek",
        ["<｜tool▁call▁begin｜>"],
        lambda source: DeepSeekCalls(fenced="```json" in source),
    ),
    _Family(
        "mistral",
        ["[TOOL_CALLS]"],
        lambda source: MistralCalls(
            named="[ARGS]" in source or "[CALL_ID]" in source, with_id="[CALL_ID]" in source
        ),
    ),
    _Family("command-r", ["<|START_ACTION|>"], lambda _: COMMAND_R),
    _Family("function-gemma", ["<start_function_call>"], lambda _: FUNCTION_GEMMA),
    _Family("gemma-4", ["<|tool_call>", "<tool_call|>"], lambda _: GEMMA_4),
    _Family("glm", ["<tool_call>", "<arg_key>"], lambda _: ArgumentTags()),
    _Family(
        "seed-oss",
        ["<seed:tool_call>", "<parameter="],
        lambda _: FunctionTags("<seed:tool_call>", "</seed:tool_call>", lines=False),
    ),
    _Family("qwen3-coder", ["<function=", "<parameter="], lambda _: FunctionTags()),
    _Family(
        "lfm2",
        ["<|tool_call_start|>"],
        lambda _: PythonCalls("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    _Family(
        "olmo-3",
        ["<function_calls>", "pythonic"],
        lambda _: PythonCalls("<function_calls>", "</function_calls>", listed=False),
    ),
    _Family("nemotron", ["<TOOLCALL>"], lambda _: NEMOTRON),
    _Family("granite", ["<|tool_call|>", "<|start_of_role|>"], lambda _: GRANITE_3),
    _Family("phi-4-mini", ["<|tool|>"], _phi_4_mini),
    _Family("phi-4-mini", ["<|tool_call|>"], _phi_4_mini),
    _Family("functools", ["functools["], lambda _: FUNCTOOLS),
    _Family("apriel", ["<tool_calls>"], lambda _: APRIEL),
    _Family(
        "gemma-tool-code",
        ["```tool_code"],
        lambda _: PythonCalls("```tool_code", "```", listed=False),
    ),
    _Family("hermes", ["<tool_call>"], lambda _: HERMES),
    _Family(
        "functionary-3.1",
        ["<function="],
        lambda _: EitherCalls(FunctionTags("", "", json=True), LlamaCalls()),
    ),
    _Family("pythonic", ["[func_name1("], lambda _: PythonCalls()),
    _Family("llama-3", ["<|start_header_id|>", '"parameters"'], lambda _: LlamaCalls()),
    _Family("llama-3", ["<|python_tag|>"], lambda _: LlamaCalls()),
)


def detect(template: str | None, *, renders_tools: bool) -> Dialect:
    """The dialect of a model with this chat template.

    :param renders_tools: it writes tool definitions into the prompt; else the model is told
        of them by :meth:`Dialect.preamble`, and calls them as that says.
    """
    source = template or ""
    if all(mark in source for mark in ("<|channel|>", "<|message|>", "<|start|>")):
        return Dialect("harmony", HarmonyFormat())
    if renders_tools and ">>>" in source and "<|start_header_id|>" in source:
        return Dialect("functionary-3.2", AddressedFormat())
    thinking, thinks = _thinking(source)
    name, syntax = _syntax(source)
    if not renders_tools:
        name, syntax = "generic", _asked_for_hermes(syntax)
    format_: Format = PlainFormat(syntax, thinking=thinking, thinks=thinks)
    return Dialect(name, format_, short_ids=_DEMANDS_SHORT_IDS.search(source) is not None)


def _syntax(source: str) -> tuple[str, CallSyntax]:
    for family in _FAMILIES:
        if all(sign in source for sign in family.signs):
            return family.name, family.syntax(source)
    return "generic", HERMES


def _asked_for_hermes(known: CallSyntax) -> CallSyntax:
    """Hermes, and the form in which the template writes past calls, where that has marks."""
    if known.bare or HERMES.opening in known.triggers:
        return HERMES
    return EitherCalls(HERMES, known)


def _thinking(source: str) -> tuple[Thinking, bool]:
    """The marks around reasoning, and whether the template speaks of them."""
    for thinking in KNOWN:
        if all(mark in source for mark in thinking.signs):
            return thinking, True
    return THINK, THINK.closing in source
