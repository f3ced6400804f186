"""An answer that has a form of its own: behind the reasoning, beside calls, in every family."""

from __future__ import annotations

import pytest

from ferrum_local.errors import Unsupported
from ferrum_local.llm.dialects import Dialect, detect
from tests.unit.dialects import TOOLS, read
from tests.unit.test_dialect_families import FAMILIES, Family, dialect_of, rendered_calls
from tests.unit.test_dialect_grammars import Vocabulary, takes

BY_TEMPLATE = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.template)
ANSWER = '"42"'
QWEN_3 = detect("<think></think><tool_call>", renders_tools=True)


def marked(dialect: Dialect) -> Vocabulary:
    return Vocabulary(dialect.markers)


def form(
    dialect: Dialect,
    *,
    choice: str = "none",
    answer: str = ANSWER,
    budget: int | None = None,
    tail: str = "",
    words: Vocabulary | None = None,
) -> str | None:
    return dialect.grammar(
        tools=TOOLS,
        tool_choice=choice,
        tool_name=None,
        parallel=False,
        special=(words or marked(dialect)).special,
        prompt_tail=tail,
        reasoning=True,
        answer=answer,
        max_thought_tokens=budget,
    )


def answered(family: Family) -> str:
    """``42`` as the family writes an answer."""
    heads = {"functionary_3_2": "all\n", "gpt_oss": "<|channel|>final<|message|>"}
    return heads.get(family.template, "") + "42"


@BY_TEMPLATE
def test_an_answer_in_a_form_is_taken_and_nothing_else(family: Family) -> None:
    dialect = dialect_of(family)
    words = marked(dialect)
    tail, _ = rendered_calls(family, [("now", {})])
    lark = form(dialect, tail=tail)
    if lark is None:  # there is no more to it than the form itself
        return
    assert takes(lark, answered(family), words), lark
    assert not takes(lark, answered(family).replace("42", "43"), words)
    assert read(dialect, answered(family), tools=(), prompt_tail=tail).content == "42"


@BY_TEMPLATE
def test_with_tools_it_is_that_or_a_call(family: Family) -> None:
    dialect = dialect_of(family)
    words = marked(dialect)
    tail, call = rendered_calls(family, [("weather", {"city": "Rome"})])
    either = form(dialect, choice="auto", tail=tail)
    demanded = form(dialect, choice="required", tail=tail)
    assert either is not None and demanded is not None
    assert takes(either, call.strip("\n"), words), either
    assert takes(either, answered(family), words), either
    assert not takes(either, answered(family).replace("42", "forty-two"), words)
    assert takes(demanded, call.strip("\n"), words)
    assert not takes(demanded, answered(family), words)


@pytest.mark.parametrize("special", [False, True])
def test_the_form_holds_behind_the_reasoning(special: bool) -> None:
    words = marked(QWEN_3) if special else Vocabulary()
    opened = form(QWEN_3, tail="<think>\n", words=words)
    assert opened is not None
    assert takes(opened, "Let me see.\n</think>\n\n42", words)
    assert not takes(opened, "42", words)
    free = form(QWEN_3, words=words)
    assert free is not None
    assert takes(free, "<think>\nLet me see.\n</think>\n\n42", words)
    assert takes(free, "42", words)
    assert not takes(free, "<think>\nLet me see.\n</think>\n\nNo.", words)
    closed = form(QWEN_3, tail="<think>\n\n</think>\n\n", words=words)
    assert closed is None


def test_a_budget_leaves_the_reasoning_no_more_than_that() -> None:
    words = marked(QWEN_3)
    lark = form(QWEN_3, answer="", budget=5, tail="<think>\n")
    assert lark is not None
    assert takes(lark, "abcde</think>anything", words)
    assert takes(lark, "</think>anything", words)
    assert not takes(lark, "abcdef</think>anything", words)
    none = form(QWEN_3, answer="", budget=0, tail="<think>\n")
    assert none is not None
    assert takes(none, "</think>x", words)
    assert not takes(none, "a</think>x", words)
    by_itself = form(QWEN_3, answer="", budget=5)
    assert by_itself is not None
    assert takes(by_itself, "<think>abc</think>x", words)
    assert takes(by_itself, "no thought at all", words)
    assert not takes(by_itself, "<think>abcdef</think>x", words)


def test_a_budget_for_harmony_is_one_of_its_messages() -> None:
    harmony = detect("<|channel|><|message|><|start|>", renders_tools=True)
    words = marked(harmony)
    lark = form(harmony, answer="", budget=3)
    assert lark is not None
    thought = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>Hi."
    assert takes(lark, thought.format("abc") + final, words)
    assert not takes(lark, thought.format("abcd") + final, words)
    assert not takes(lark, thought.format("a") * 2 + final, words)
    begun = form(
        harmony, answer="", budget=3, tail="<|start|>assistant<|channel|>analysis<|message|>"
    )
    assert begun is not None
    assert takes(begun, "abc<|end|><|start|>assistant" + final, words)
    assert not takes(begun, "abcd<|end|><|start|>assistant" + final, words)
    again = thought.format("a") + final
    assert not takes(begun, "abc<|end|><|start|>assistant" + again, words)


def test_a_mark_that_is_ordinary_text_cannot_close_in_time() -> None:
    with pytest.raises(Unsupported) as caught:
        form(QWEN_3, answer="", budget=5, tail="<think>\n", words=Vocabulary())
    assert caught.value.param == "reasoning_budget_tokens"


def test_a_model_that_does_not_think_needs_no_budget() -> None:
    plain = detect("<|im_start|>", renders_tools=False)
    assert form(plain, answer="", budget=5) is None
    assert form(plain) is None
