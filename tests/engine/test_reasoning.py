"""A model that thinks first: what it thinks is told apart, counted, and bounded.

The model is tiny and its weights are random, but its vocabulary has marks and its template
opens the block of reasoning, as those of many real ones do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import InvalidRequest
from ferrum_local.types import (
    ChatPrompt,
    Constraint,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    LlmOptions,
    ModelSpec,
    ReasoningOptions,
    SamplingParams,
    StreamChunk,
)
from tests.engine.tiny_models import write_llama

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = """\
{%- for message in messages %}[{{ message.role }}]{{ message.content }}
{% endfor %}[assistant]<think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}"""
HI = ({"role": "user", "content": "Hi"},)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    write_llama(path, marks=MARKS, chat_template=TEMPLATE)
    engine = LocalEngine(
        [ModelSpec(id="thinker", path=str(path))], LlmOptions(ctx_size=512, slots=4, threads=1)
    )
    engine.load()
    yield engine
    engine.check()
    engine.close()


def token(engine: LocalEngine, text: str) -> int:
    (found,) = engine.tokenize(text, add_special=False, parse_special=True)
    return found


def request(
    engine: LocalEngine, *, close_after: int | None = None, **fields: Any
) -> InferenceRequest:
    """:param close_after: the model ends its reasoning by itself at about that length."""
    params: dict[str, Any] = {"max_tokens": 40, "seed": 5, "ignore_eos": True}
    params |= fields.pop("params", {})
    bias = {token(engine, mark): -100.0 for mark in MARKS}
    if close_after is not None:
        bias[token(engine, "</think>")] = 100.0 if close_after == 0 else 1.5
    return InferenceRequest(
        id="r",
        model_id="thinker",
        prompt=ChatPrompt(messages=HI, **fields),
        sampling_params=SamplingParams(logit_bias=bias, **params),
    )


def infer(engine: LocalEngine, **fields: Any) -> InferenceResponse:
    return engine.infer(request(engine, **fields))


def stream(engine: LocalEngine, **fields: Any) -> list[StreamChunk]:
    with engine.infer_stream(request(engine, **fields)) as chunks:
        return list(chunks)


def test_chat_23_what_the_template_opened_is_reasoning_streamed_or_not(
    thinker: LocalEngine,
) -> None:
    answer = infer(thinker)
    (choice,) = answer.choices
    assert choice.reasoning
    assert choice.text == ""
    assert choice.finish_reason is FinishReason.LENGTH
    assert answer.usage.reasoning_tokens == answer.usage.completion_tokens == 40
    chunks = stream(thinker)
    assert len(chunks) > 10
    assert "".join(c.reasoning for c in chunks) == choice.reasoning
    assert not any(c.text for c in chunks)


def test_chat_23_behind_the_closing_mark_is_content(thinker: LocalEngine) -> None:
    answer = infer(thinker, close_after=0, params={"max_tokens": 5})
    (choice,) = answer.choices
    # The bias keeps on writing the mark. Where there is nothing to close, it is not shown.
    assert (choice.reasoning, choice.text) == ("", "")
    left = infer(
        thinker, close_after=0, params={"max_tokens": 5}, reasoning=ReasoningOptions(separate=False)
    )
    assert left.choices[0].text == "</think>" * 5
    assert answer.usage.reasoning_tokens == 1
    chunks = stream(thinker, close_after=0, params={"max_tokens": 5})
    assert "".join(c.text for c in chunks) == choice.text


def test_reasoning_is_left_in_the_text_if_so_wished(thinker: LocalEngine) -> None:
    apart = infer(thinker)
    left = infer(thinker, reasoning=ReasoningOptions(separate=False))
    assert left.choices[0].text.strip("\n") == apart.choices[0].reasoning
    assert left.choices[0].reasoning == ""
    assert left.usage.reasoning_tokens == 40


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": ReasoningOptions(effort="none")},
        {"reasoning": ReasoningOptions(budget_tokens=0)},
        {"template_kwargs": {"enable_thinking": False}},
    ],
)
def test_reasoning_can_be_turned_off(thinker: LocalEngine, fields: dict[str, Any]) -> None:
    answer = infer(thinker, **fields)
    assert (answer.choices[0].reasoning, answer.usage.reasoning_tokens) == ("", 0)
    assert answer.choices[0].text
    prompt = thinker.apply_template(ChatPrompt(messages=HI, **fields))
    assert prompt.endswith("</think>\n\n")


def test_what_the_client_says_to_the_template_wins(thinker: LocalEngine) -> None:
    prompt = ChatPrompt(
        messages=HI,
        reasoning=ReasoningOptions(effort="none"),
        template_kwargs={"enable_thinking": True},
    )
    assert thinker.apply_template(prompt).endswith("<think>\n")


def test_an_effort_that_a_template_has_no_word_for_is_refused(engine: LocalEngine) -> None:
    for effort in ("none", "medium", None):
        engine.apply_template(ChatPrompt(messages=HI, reasoning=ReasoningOptions(effort=effort)))
    with pytest.raises(InvalidRequest) as caught:
        engine.apply_template(ChatPrompt(messages=HI, reasoning=ReasoningOptions(effort="high")))
    assert caught.value.param == "reasoning_effort"


def test_logprobs_are_of_content_alone(thinker: LocalEngine) -> None:
    params = {"logprobs": 1, "max_tokens": 20}
    assert infer(thinker, params=params).choices[0].logprobs == ()
    off = ReasoningOptions(effort="none")
    assert len(infer(thinker, reasoning=off, params=params).choices[0].logprobs) == 20


# Budgets and constraints: what a grammar sees to


def test_a_budget_closes_the_reasoning_and_the_answer_follows(thinker: LocalEngine) -> None:
    budget = ReasoningOptions(budget_tokens=7)
    params = {"max_tokens": 30, "ignore_eos": True}
    answer = infer(thinker, reasoning=budget, params=params)
    (choice,) = answer.choices
    assert choice.reasoning
    assert choice.text
    assert answer.usage.reasoning_tokens == 8  # and the mark
    assert answer.usage.completion_tokens == 30
    chunks = stream(thinker, reasoning=budget, params=params)
    assert "".join(c.reasoning for c in chunks) == choice.reasoning
    assert "".join(c.text for c in chunks) == choice.text


def test_a_budget_is_no_duty(thinker: LocalEngine) -> None:
    answer = infer(
        thinker, close_after=0, reasoning=ReasoningOptions(budget_tokens=20),
        params={"max_tokens": 10},
    )  # fmt: skip
    assert answer.usage.reasoning_tokens == 1


def constrained(thinker: LocalEngine, constraint: Constraint, **fields: Any) -> InferenceRequest:
    return msgspec.structs.replace(request(thinker, **fields), constraint=constraint)


DIGITS = Constraint(kind="regex", value="[0-9]{3}", param="regex")


def test_a_constraint_begins_behind_the_reasoning(thinker: LocalEngine) -> None:
    budget = ReasoningOptions(budget_tokens=5)
    answer = thinker.infer(constrained(thinker, DIGITS, reasoning=budget))
    (choice,) = answer.choices
    assert choice.reasoning
    assert re.fullmatch("[0-9]{3}", choice.text)
    assert choice.finish_reason is FinishReason.STOP
    by_itself = thinker.infer(constrained(thinker, DIGITS, close_after=0))
    assert re.fullmatch("[0-9]{3}", by_itself.choices[0].text)
    off = thinker.infer(constrained(thinker, DIGITS, reasoning=ReasoningOptions(effort="none")))
    assert re.fullmatch("[0-9]{3}", off.choices[0].text)
    assert off.usage.reasoning_tokens == 0


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "",
        "parameters": {"type": "object", "properties": {"day": {"enum": ["today", "tomorrow"]}}},
    },
}


def test_a_demanded_call_comes_behind_the_reasoning(thinker: LocalEngine) -> None:
    answer = infer(
        thinker, tools=(WEATHER,), tool_choice="required", params={"max_tokens": 200},
        reasoning=ReasoningOptions(budget_tokens=5),
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.reasoning
    assert choice.text == ""
    assert [call.name for call in choice.tool_calls] == ["weather"]
    assert set(json.loads(choice.tool_calls[0].arguments)) <= {"day"}
    assert choice.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("wants_call", [True, False])
def test_with_tools_and_a_constraint_an_answer_is_one_or_the_other(
    thinker: LocalEngine, wants_call: bool
) -> None:
    asked = constrained(
        thinker, DIGITS, tools=(WEATHER,), reasoning=ReasoningOptions(effort="none"),
        params={"max_tokens": 200},
    )  # fmt: skip
    mark = token(thinker, "<tool_call>")
    bias = {mark: 100.0 if wants_call else -100.0}
    params = msgspec.structs.replace(asked.sampling_params, logit_bias=bias)
    (choice,) = thinker.infer(msgspec.structs.replace(asked, sampling_params=params)).choices
    if wants_call:
        assert [call.name for call in choice.tool_calls] == ["weather"]
        assert choice.finish_reason is FinishReason.TOOL_CALLS
    else:
        assert re.fullmatch("[0-9]{3}", choice.text)
        assert choice.finish_reason is FinishReason.STOP
    demanded = constrained(
        thinker, DIGITS, tools=(WEATHER,), tool_choice="required", params={"max_tokens": 200},
        reasoning=ReasoningOptions(budget_tokens=2),
    )  # fmt: skip
    assert thinker.infer(demanded).choices[0].tool_calls


def test_a_budget_needs_a_token_that_closes(tmp_path: Path) -> None:
    path = tmp_path / "text-marks.gguf"
    write_llama(path, chat_template=TEMPLATE)
    engine = LocalEngine(
        [ModelSpec(id="thinker", path=str(path))], LlmOptions(ctx_size=256, slots=1, threads=1)
    )
    engine.load()
    prompt = ChatPrompt(messages=HI, reasoning=ReasoningOptions(budget_tokens=5))
    with pytest.raises(InvalidRequest) as caught:
        engine.infer(InferenceRequest(id="r", model_id="thinker", prompt=prompt))
    assert caught.value.param == "reasoning_budget_tokens"
    engine.close()
