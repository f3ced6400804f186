"""A small model that guesses for another, with real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import ModelLoadError
from ferrum_local.llm import draft_model as draft_module
from ferrum_local.types import LlmOptions, ModelSpec
from tests.conftest import GEMMA3, SMOLLM2
from tests.engine.test_generation import chat, infer, infer_together, request, runtime_of


def load(draft: Path, **options: object) -> LocalEngine:
    settings = {"ctx_size": 512, "slots": 2, "draft_model": str(draft), **options}
    engine = LocalEngine([ModelSpec(id="m", path=str(SMOLLM2))], LlmOptions(**settings))  # type: ignore[arg-type]
    engine.load()
    return engine


def test_guesses_are_checked_and_the_text_stays_the_models_own() -> None:
    engine = load(SMOLLM2)
    # The model drafts for itself here, which costs as much as it saves; say that it is cheap.
    draft = runtime_of(engine)._draft_model
    assert draft is not None
    draft.relative_cost = 0.01
    counters = runtime_of(engine).runner.counters
    prompt = chat("Write a short poem about a lighthouse keeper.")
    answer = infer(engine, prompt, max_tokens=48, ignore_eos=True)
    assert counters.draft_tokens_accepted > 20
    assert counters.draft_tokens_accepted > 0.8 * counters.draft_tokens
    assert answer.usage.completion_tokens == 48
    # Greedy text is the likeliest token everywhere, up to the rounding of larger steps.
    written = answer.choices[0].token_ids
    scored = infer(engine, (*answer.prompt_token_ids, *written), max_tokens=0, prompt_logprobs=1)
    for score in scored.prompt_logprobs[-len(written) :]:
        assert score.logprob is not None
        assert score.logprob > score.top[0].logprob - 0.5
    answers = infer_together(
        engine, [request(chat(f"Name {n} things in a kitchen."), max_tokens=16) for n in (2, 3, 4)]
    )
    assert all(a.usage.completion_tokens for a in answers)
    runtime_of(engine).runner.check()
    engine.close()


def test_a_long_prompt_is_followed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_module, "_MAX_CATCH_UP", 16)
    engine = load(SMOLLM2)
    draft = runtime_of(engine)._draft_model
    assert draft is not None
    draft.relative_cost = 0.01
    infer(engine, chat("All work and no play makes a dull day. " * 10), max_tokens=40)
    assert runtime_of(engine).runner.counters.draft_tokens_accepted > 0
    engine.close()


def test_another_vocabulary_is_refused_at_load() -> None:
    if not GEMMA3.exists():
        pytest.skip("Gemma is not here: run `make setup-test`")
    with pytest.raises(ModelLoadError, match="vocabularies differ"):
        load(GEMMA3)
