"""Generation with real models through the engine, without HTTP."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import Cancelled, ContextOverflow, InvalidRequest, ModelNotFound
from ferrum_local.llm.runtime import LlmRuntime
from ferrum_local.types import (
    ChatPrompt,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    InfillPrompt,
    LlmOptions,
    ModelSpec,
    Prompt,
    SamplingParams,
)
from tests.conftest import SMOLLM2

_ids = itertools.count()


def request(prompt: Prompt, **params: Any) -> InferenceRequest:
    return InferenceRequest(
        id=f"test-{next(_ids)}",
        model_id="",
        prompt=prompt,
        sampling_params=SamplingParams(**{"temperature": 0.0, **params}),
    )


def chat(*texts: str) -> ChatPrompt:
    """A conversation that alternates user, assistant, user …"""
    roles = itertools.cycle(("user", "assistant"))
    return ChatPrompt(
        messages=tuple(
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
        )
    )


def runtime_of(engine: LocalEngine) -> LlmRuntime:
    (runtime,) = engine._runtimes.llms.values()
    return runtime


def infer(engine: LocalEngine, prompt: Prompt, **params: Any) -> InferenceResponse:
    return engine.infer(request(prompt, **params))


def infer_together(
    engine: LocalEngine, requests: list[InferenceRequest]
) -> list[InferenceResponse]:
    results: list[InferenceResponse | None] = [None] * len(requests)

    def run(i: int) -> None:
        results[i] = engine.infer(requests[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [r for r in results if r is not None]
    assert len(done) == len(requests)
    return done


def test_streamed_text_equals_unstreamed_text(engine: LocalEngine) -> None:
    prompt = chat("Write three short sentences about the sea.")
    whole = infer(engine, prompt, max_tokens=48)
    with engine.infer_stream(request(prompt, max_tokens=48)) as stream:
        chunks = list(stream)
    assert "".join(c.text for c in chunks) == whole.choices[0].text
    assert chunks[-1].finish_reason is whole.choices[0].finish_reason
    assert stream.usage.completion_tokens == whole.usage.completion_tokens


def test_usage_equals_the_tokenizers_counts(engine: LocalEngine) -> None:
    prompt = chat("Name a colour.")
    answer = infer(engine, prompt, max_tokens=24)
    runtime = runtime_of(engine)
    rendered = runtime.chat_template.render(prompt.messages)
    expected = runtime.model.tokenize(rendered, add_special=False, parse_special=True)
    assert answer.usage.prompt_tokens == len(expected)
    assert answer.usage.completion_tokens == len(answer.choices[0].token_ids)
    pieces = b"".join(runtime.model.token_bytes(t) for t in answer.choices[0].token_ids)
    assert pieces.decode("utf-8", errors="replace") == answer.choices[0].text


def test_the_next_turn_of_a_chat_evaluates_only_what_is_new(engine: LocalEngine) -> None:
    first = "Tell me something about the number seven, at some length please."
    answer = infer(engine, chat(first), max_tokens=32, ignore_eos=True)
    follow_up = infer(engine, chat(first, answer.choices[0].text, "And about eight?"), max_tokens=4)
    held = answer.usage.prompt_tokens + answer.usage.completion_tokens
    # The very last sampled token was never evaluated; the turn's end mark is new.
    assert follow_up.usage.cached_tokens >= held - 2
    assert follow_up.timings.prompt_n == (
        follow_up.usage.prompt_tokens - follow_up.usage.cached_tokens
    )


def test_n_choices_evaluate_the_prompt_once(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    before = counters.prompt_tokens_evaluated
    answer = infer(
        engine, chat("Invent a name for a cat. " * 8), n=4, temperature=1.0, seed=1, max_tokens=8
    )
    evaluated = counters.prompt_tokens_evaluated - before
    assert evaluated <= answer.usage.prompt_tokens + 3  # the last token once for each choice
    assert len({c.text for c in answer.choices}) > 1
    assert answer.usage.completion_tokens == sum(len(c.token_ids) for c in answer.choices)


def test_concurrent_requests_with_one_prefix_evaluate_it_once(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    system = "You answer in the style of an old sailor. " * 20
    prompts = [chat(f"{system} Question {i}: what is {i} plus {i}?") for i in range(4)]
    before = counters.prompt_tokens_evaluated
    answers = infer_together(engine, [request(p, max_tokens=4) for p in prompts])
    evaluated = counters.prompt_tokens_evaluated - before
    n_prompt = answers[0].usage.prompt_tokens
    assert evaluated < 1.5 * n_prompt, f"{evaluated} tokens for 4 prompts of {n_prompt}"


def test_more_requests_than_slots_all_complete(engine: LocalEngine) -> None:
    requests = [request(chat(f"Say the number {i}."), max_tokens=8) for i in range(12)]
    answers = infer_together(engine, requests)
    assert {a.id for a in answers} == {r.id for r in requests}
    assert all(a.usage.completion_tokens > 0 for a in answers)


def test_chat_17_the_same_seed_gives_the_same_text(engine: LocalEngine) -> None:
    prompt = chat("Tell me a story about a seed.")
    answers = [infer(engine, prompt, temperature=1.0, seed=42, max_tokens=24) for _ in range(2)]
    assert answers[1].usage.cached_tokens > answers[0].usage.cached_tokens
    assert answers[0].choices == answers[1].choices
    other = infer(engine, prompt, temperature=1.0, seed=43, max_tokens=24).choices[0].text
    assert other != answers[0].choices[0].text


def test_chat_18_greedy_text_is_the_same_cold_and_cached(engine: LocalEngine) -> None:
    for subject in ("rivers", "mountains", "bread"):
        prompt = chat(f"Write two sentences about {subject}. " + "Be kind. " * len(subject))
        cold, cached = (infer(engine, prompt, max_tokens=32) for _ in range(2))
        assert cached.usage.cached_tokens == cached.usage.prompt_tokens - 1
        assert cached.choices == cold.choices


def test_chat_17_without_a_seed_answers_vary(engine: LocalEngine) -> None:
    prompt = chat("Tell me a story.")
    texts = {
        infer(engine, prompt, temperature=1.5, max_tokens=16).choices[0].text for _ in range(3)
    }
    assert len(texts) > 1


def test_chat_06_a_prompt_that_leaves_one_token_gets_one_and_a_full_one_is_refused(
    engine: LocalEngine,
) -> None:
    n_ctx = runtime_of(engine).n_ctx
    room_for_one = tuple(1000 + i % 500 for i in range(n_ctx - 1))
    answer = infer(engine, room_for_one, max_tokens=1024, ignore_eos=True)
    assert answer.usage.completion_tokens == 1
    assert answer.choices[0].finish_reason is FinishReason.LENGTH
    with pytest.raises(ContextOverflow) as refused:
        infer(engine, (*room_for_one, 1000))
    assert str(n_ctx) in refused.value.message


def test_logprobs_are_those_of_the_unmodified_distribution(engine: LocalEngine) -> None:
    prompt = chat("Is water wet?")
    plain = infer(engine, prompt, max_tokens=1, logprobs=5).choices[0].logprobs[0]
    best = plain.token_id
    assert plain.top[0].token_id == best
    assert plain.top[0].logprob == plain.logprob
    pushed = (
        infer(
            engine,
            prompt,
            max_tokens=1,
            logprobs=5,
            logit_bias={best: -100.0},
            temperature=0.7,
            seed=1,
        )
        .choices[0]
        .logprobs[0]
    )
    assert pushed.token_id != best
    assert pushed.top[0].token_id == best
    assert abs(pushed.top[0].logprob - plain.logprob) < 0.05


def test_prompt_scores_equal_the_logprobs_of_generating_the_same_text(engine: LocalEngine) -> None:
    prompt = "The quick brown fox jumps over"
    written = infer(engine, prompt, max_tokens=6, logprobs=0, ignore_eos=True)
    scored = infer(
        engine, (*written.prompt_token_ids, *written.choices[0].token_ids),
        max_tokens=0, prompt_logprobs=2,
    )  # fmt: skip
    assert scored.choices[0].text == ""
    assert scored.choices[0].finish_reason is FinishReason.LENGTH
    assert len(scored.prompt_logprobs) == scored.usage.prompt_tokens
    assert scored.prompt_logprobs[0].logprob is None
    tail = scored.prompt_logprobs[-6:]
    for mine, theirs in zip(tail, written.choices[0].logprobs, strict=True):
        assert mine.token_id == theirs.token_id
        assert mine.logprob is not None
        assert theirs.logprob is not None
        # Evaluated in another batch shape, so equal only up to the kernels' rounding.
        assert abs(mine.logprob - theirs.logprob) < 0.3
        assert len(mine.top) == 2


def test_prompt_scores_of_a_long_prompt_come_complete_and_in_order(engine: LocalEngine) -> None:
    tokens = tuple(1000 + i for i in range(200))
    scored = infer(engine, tokens, max_tokens=0, prompt_logprobs=0)
    assert tuple(s.token_id for s in scored.prompt_logprobs) == tokens


def test_min_tokens_and_ignore_eos_hold_off_the_end(engine: LocalEngine) -> None:
    prompt = chat("Say hi.")
    assert infer(engine, prompt, max_tokens=64, min_tokens=40).usage.completion_tokens >= 40
    endless = infer(engine, prompt, max_tokens=64, ignore_eos=True)
    assert endless.usage.completion_tokens == 64
    assert endless.choices[0].finish_reason is FinishReason.LENGTH


def test_logit_bias_outside_the_vocabulary_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        infer(engine, chat("Hi"), logit_bias={10**6: 1.0})


def test_token_ids_outside_the_vocabulary_are_refused(engine: LocalEngine) -> None:
    for bad in ((-1,), (5, 49152), (2**31,)):
        with pytest.raises(InvalidRequest, match=r"prompt\[\d\]"):
            infer(engine, bad)


def test_a_model_without_fill_in_the_middle_tokens_says_so(gemma_engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest) as refused:
        infer(gemma_engine, InfillPrompt(prefix="def f(", suffix="return x"))
    assert refused.value.param == "suffix"


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 2.0, "min_p": 0.0},
        {"temperature": 1e-9},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"typical_p": 0.01},
        {"top_n_sigma": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": ()},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 0.1},
        {"repeat_penalty": 10.0, "repeat_last_n": -1},
        {"presence_penalty": 2.0, "frequency_penalty": -2.0},
        {"logit_bias": {i: -100.0 for i in range(0, 49152, 2)}},
    ],
    ids=lambda p: ",".join(p),
)
def test_every_sampling_field_generates(engine: LocalEngine, params: dict[str, Any]) -> None:
    answer = infer(
        engine, chat("Count to ten."),
        **{"temperature": 1.0, "seed": 7, "max_tokens": 8, "ignore_eos": True, **params},
    )  # fmt: skip
    assert answer.usage.completion_tokens == 8


def test_penalties_change_the_text(engine: LocalEngine) -> None:
    prompt = chat("Repeat the word apple many times: apple apple apple")
    plain = infer(engine, prompt, max_tokens=32, ignore_eos=True)
    penalised = infer(
        engine, prompt, max_tokens=32, ignore_eos=True, frequency_penalty=2.0, repeat_penalty=1.5
    )
    assert penalised.choices[0].text != plain.choices[0].text
    assert len(set(penalised.choices[0].token_ids)) > len(set(plain.choices[0].token_ids))


def test_stop_strings_end_the_text_before_them(engine: LocalEngine) -> None:
    prompt = "1, 2, 3, 4, 5,"
    whole = infer(engine, prompt, max_tokens=24, ignore_eos=True).choices[0].text
    stop = whole[6:9]
    cut = infer(engine, prompt, max_tokens=24, ignore_eos=True, stop=(stop,))
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason is FinishReason.STOP


def test_str_01_leaving_a_stream_frees_its_slot(engine: LocalEngine) -> None:
    runtime = runtime_of(engine)
    with engine.infer_stream(request(chat("Count."), max_tokens=900, ignore_eos=True)) as stream:
        for _ in zip(range(3), stream, strict=False):
            pass
    runtime.runner.check()  # runs between steps, so the cancellation was seen
    assert runtime.runner.n_running == 0
    assert engine.status().active_requests == 0


def test_str_02_leaving_during_prefill_stops_the_prefill(engine: LocalEngine) -> None:
    runtime = runtime_of(engine)
    counters = runtime.runner.counters
    before = counters.prompt_tokens_evaluated
    tokens = tuple(3000 + i for i in range(1000))
    with engine.infer_stream(request(tokens)) as stream:
        assert stream.poll(0.01) is None
    runtime.runner.check()
    assert runtime.runner.n_running == 0
    assert counters.prompt_tokens_evaluated - before < 1000


def test_str_03_an_abandoned_unstreamed_request_is_cancelled(engine: LocalEngine) -> None:
    looks = itertools.count()
    with pytest.raises(Cancelled):
        engine.infer(
            request(chat("Count."), max_tokens=900, ignore_eos=True),
            is_abandoned=lambda: next(looks) >= 2,
        )
    runtime_of(engine).runner.check()
    assert engine.metrics().models[0].running_sequences == 0


def test_cancel_by_id(engine: LocalEngine) -> None:
    wanted = request(chat("Count."), max_tokens=900, ignore_eos=True)
    with engine.infer_stream(wanted) as stream:
        next(iter(stream))
        assert engine.cancel(wanted.id)
        with pytest.raises(Cancelled):
            list(stream)
    assert not engine.cancel(wanted.id)


def test_chat_21_an_unknown_model_is_named_and_the_known_ones_listed(engine: LocalEngine) -> None:
    with pytest.raises(ModelNotFound) as refused:
        engine.infer(InferenceRequest(id="x", model_id="gpt-4o", prompt="Hi"))
    assert refused.value.known_ids == ("SmolLM2-135M-Instruct.Q4_1",)
    assert "gpt-4o" in refused.value.message


def test_kinds_without_a_model_say_so(engine: LocalEngine) -> None:
    for call in (
        lambda: engine.embed_text("hello"),
        lambda: engine.embed_image("data:"),
        lambda: engine.transcribe_bytes(b""),
        lambda: engine.synthesize_speech("hello"),
        engine.tts_sample_rate,
    ):
        with pytest.raises(ModelNotFound):
            call()


def test_gemma_without_a_template_answers_and_stops(gemma_engine: LocalEngine) -> None:
    runtime = runtime_of(gemma_engine)
    assert runtime.chat_template.fallback
    answer = infer(gemma_engine, chat("What is the capital of France?"), max_tokens=24)
    assert answer.usage.completion_tokens > 0
    assert "<|im_end|>" not in answer.choices[0].text


def test_chat_18_gemma_writes_the_same_greedy_text_cold_cached_and_beside_others(
    gemma_engine: LocalEngine,
) -> None:
    prompt = "The most important inventions of the last century are"
    cold = infer(gemma_engine, prompt, max_tokens=32, ignore_eos=True)
    cached = infer(gemma_engine, prompt, max_tokens=32, ignore_eos=True)
    assert cached.usage.cached_tokens > 0
    assert cached.choices[0].text == cold.choices[0].text
    others = [request(f"{i} reasons to go out:", max_tokens=32) for i in range(3)]
    together = infer_together(
        gemma_engine, [request(prompt, max_tokens=32, ignore_eos=True), *others]
    )
    assert together[0].choices[0].text == cold.choices[0].text


def test_an_evicted_conversation_comes_back_from_the_prompt_cache(tmp_path: Path) -> None:
    options = LlmOptions(ctx_size=512, slots=1, prompt_cache_mb=64, prompt_cache_dir=str(tmp_path))
    story = chat("Tell me of a ship that sailed north. " * 12)
    other = chat("Recite the names of all the trees that you know. " * 12)

    def start() -> LocalEngine:
        engine = LocalEngine([ModelSpec(id="m", path=str(SMOLLM2))], options)
        engine.load()
        return engine

    engine = start()
    cold = infer(engine, story, max_tokens=16)
    assert cold.usage.cached_tokens == 0
    infer(engine, other, max_tokens=4)  # takes the only slot
    back = infer(engine, story, max_tokens=16)
    assert back.usage.cached_tokens == back.usage.prompt_tokens - 1
    assert back.choices == cold.choices
    runtime_of(engine).runner.check()
    engine.close()

    engine = start()
    after_restart = infer(engine, story, max_tokens=16)
    assert after_restart.usage.cached_tokens == back.usage.cached_tokens
    assert after_restart.choices == cold.choices
    engine.close()


def copy_task(thing: str) -> str:
    text = " ".join(f"Boat {n} brought {n} crates of {thing}." for n in range(1, 16))
    return f"{text}\n\nThe same again:\n{text[:80]}"


def test_copied_text_is_drafted_and_comes_out_the_same(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    before = (counters.draft_tokens_accepted, counters.steps, counters.generated_tokens)
    prompt = copy_task("fish")
    answer = infer(engine, prompt, max_tokens=80)
    accepted = counters.draft_tokens_accepted - before[0]
    assert accepted > 20
    assert counters.steps - before[1] < counters.generated_tokens - before[2]
    assert prompt[80:160] in prompt[:80] + answer.choices[0].text
    runtime_of(engine).runner.check()


def test_streams_that_all_copy_are_drafted_together_and_stay_apart(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    prompts = [copy_task(thing) for thing in ("fish", "salt", "rope")]
    for prompt in prompts:  # cached, they begin together
        infer(engine, prompt, max_tokens=1)
    before = (counters.draft_tokens_accepted, counters.steps)
    answers = infer_together(engine, [request(prompt, max_tokens=80) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert prompt[80:160] in prompt[:80] + answer.choices[0].text
    assert counters.draft_tokens_accepted - before[0] > 20
    assert counters.steps - before[1] < 80, "one token of each in a step would take 80"
    runtime_of(engine).runner.check()


def test_guesses_of_one_do_not_hold_up_another(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    with engine.infer_stream(
        request("Once", max_tokens=900, temperature=2.0, seed=1, ignore_eos=True)
    ) as free:
        next(free)
        before = counters.draft_tokens
        infer(engine, copy_task("fish"), max_tokens=40)
        assert counters.draft_tokens == before


def test_a_short_prompt_overtakes_a_long_one_beside_a_stream(engine: LocalEngine) -> None:
    long = tuple(3000 + i for i in range(900))
    running = request("Once", max_tokens=900, temperature=1.0, ignore_eos=True)
    with engine.infer_stream(running) as stream:
        next(stream)
        with engine.infer_stream(request(long, max_tokens=20)) as waiting:
            infer(engine, "A short question, asked a moment later:", max_tokens=1)
            assert waiting.poll(0) is None


def test_a_prediction_is_drafted_from(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    prompt = chat("List the planets of the solar system, one a line, nothing else.")
    plain = infer(engine, prompt, max_tokens=60)
    before = counters.draft_tokens_accepted
    predicted = engine.infer(
        msgspec.structs.replace(request(prompt, max_tokens=60), prediction=plain.choices[0].text)
    )
    assert counters.draft_tokens_accepted > before
    assert predicted.choices[0].text[:40] == plain.choices[0].text[:40]


def test_chat_05_a_huge_prompt_is_refused_with_both_counts_and_without_tokenizing_it(
    engine: LocalEngine,
) -> None:
    for prompt, field in ((chat("word " * 4_000_000), "messages"), ("word " * 4_000_000, "prompt")):
        with pytest.raises(ContextOverflow) as refused:
            infer(engine, prompt)
        assert refused.value.param == field
        assert "at least" in refused.value.message
        assert refused.value.n_prompt_tokens > runtime_of(engine).n_ctx


def test_greedy_text_is_what_the_native_sampler_gives(engine: LocalEngine) -> None:
    prompt = chat("Name four rivers and four mountains.")
    # A bias of nothing changes no logit, but its chain is more than "the likeliest".
    native = infer(engine, prompt, max_tokens=40, logit_bias={7: 0.0})
    assert infer(engine, prompt, max_tokens=40).choices[0].text == native.choices[0].text


def test_models_are_loaded_in_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's threads stay with the thread that began them; too many make decoding slow."""
    loaders: list[threading.Thread] = []

    class NotedRuntime(LlmRuntime):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            loaders.append(threading.current_thread())
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("ferrum_local.llm.runtime.LlmRuntime", NotedRuntime)
    engine = LocalEngine([ModelSpec(id="m", path=str(SMOLLM2))], LlmOptions(ctx_size=256, slots=1))
    engine.load()
    try:
        (loader,) = loaders
        assert loader is not threading.current_thread()
        assert not loader.is_alive()
    finally:
        engine.close()


def test_sequences_that_move_to_neighbouring_slots_go_on_as_if_nothing_was() -> None:
    options = LlmOptions(ctx_size=512, slots=4, speculate="off")
    engine = LocalEngine([ModelSpec(id="m", path=str(SMOLLM2))], options)
    engine.load()
    with contextlib.closing(engine):
        runner = runtime_of(engine).runner
        stories = [chat(f"Tell me a long story about {n} ships.") for n in range(1, 5)]
        asked = [request(story, max_tokens=72, ignore_eos=True) for story in stories]
        alone = [engine.infer(one).choices[0].text for one in asked]
        assert runner.counters.moved == 0
        with contextlib.ExitStack() as held:
            streams = []
            for one in asked:
                streams.append(held.enter_context(engine.infer_stream(one)))
                first = next(iter(streams[-1])).text
                assert alone[len(streams) - 1].startswith(first)
            left = next(i for i, s in enumerate(runner._scheduler.running) if s.slot == 1)
            streams[left].close()
            rest = [i for i in range(4) if i != left]
            texts = ["".join(chunk.text for chunk in streams[i]) for i in rest]
        assert runner.counters.moved == 1
        runner.check()
        for i, text in zip(rest, texts, strict=True):
            assert alone[i].endswith(text) and len(text) > 150
