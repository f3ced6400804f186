"""Right answers from every kind of KV memory: full attention, recurrent, hybrid, sliding window.

An answer is right when a twin of the model, started cold for each prompt, gives the same one.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import Cancelled
from ferrum_local.llm.context import DecodeError
from ferrum_local.llm.runner import Runner
from ferrum_local.llm.runtime import LlmRuntime
from ferrum_local.types import (
    InferenceRequest,
    InferenceResponse,
    LlmOptions,
    ModelSpec,
    SamplingParams,
)
from tests.conftest import GEMMA3
from tests.engine.tiny_models import TINY_MODELS, WINDOW
from tests.fakes import wait_until

N_CTX = 512
N_SLOTS = 4
_BOS = 1
_ids = itertools.count()


class Kind(NamedTuple):
    """A model file of one kind of memory."""

    name: str
    path: Path

    @property
    def can_cut(self) -> bool:
        return self.name in ("llama", "gemma3")

    def start(self, **options: Any) -> LocalEngine:
        settings = {"ctx_size": N_CTX, "slots": N_SLOTS, "threads": 1, "prompt_cache_mb": 0}
        engine = LocalEngine(
            [ModelSpec(id=self.name, path=str(self.path))], LlmOptions(**{**settings, **options})
        )
        engine.load()
        return engine


@pytest.fixture(scope="module", params=TINY_MODELS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    TINY_MODELS[request.param](path)
    return Kind(request.param, path)


@pytest.fixture(scope="module")
def twin(kind: Kind) -> Iterator[LocalEngine]:
    engine = kind.start(slots=1, speculate="off")
    yield engine
    engine.close()


@pytest.fixture
def engine(kind: Kind) -> Iterator[LocalEngine]:
    engine = kind.start()
    yield engine
    engine.check()
    assert runner_of(engine).n_running == 0
    engine.close()


def runtime_of(engine: LocalEngine) -> LlmRuntime:
    (runtime,) = engine._runtimes.llms.values()
    return runtime


def runner_of(engine: LocalEngine) -> Runner:
    return runtime_of(engine).runner


def request(prompt: list[int], **params: Any) -> InferenceRequest:
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, "logprobs": 0, **params}
    return InferenceRequest(
        id=f"m{next(_ids)}",
        model_id="",
        prompt=tuple(prompt),
        sampling_params=SamplingParams(**settings),
    )


def infer(engine: LocalEngine, prompt: list[int], **params: Any) -> InferenceResponse:
    return engine.infer(request(prompt, **params))


def infer_together(engine: LocalEngine, prompts: list[list[int]]) -> list[InferenceResponse]:
    """Run prompts that are all admitted between the same two steps, as far as slots go."""
    runner = runner_of(engine)
    answers: dict[int, InferenceResponse] = {}
    may_go = threading.Event()
    held = threading.Thread(target=runner.call, args=(lambda: may_go.wait(10),))
    held.start()

    def run(i: int) -> None:
        answers[i] = infer(engine, prompts[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for n_queued, thread in enumerate(threads, 1):
        thread.start()  # one after the other, so that they are admitted in order
        wait_until(lambda n=n_queued: runner.n_queued >= n)
    may_go.set()
    for thread in (held, *threads):
        thread.join()
    return [answers[i] for i in range(len(prompts))]


def forget_all(engine: LocalEngine) -> None:
    runner = runner_of(engine)

    def empty_slots() -> None:
        for slot in range(runner._slots.n_slots):
            runner._filler.empty(slot)

    runner.call(empty_slots)


def assert_right(
    answer: InferenceResponse, prompt: list[int], twin: LocalEngine, *, tolerance: float = 5e-3
) -> None:
    """The tokens of a cold start, with its log-probabilities up to the kernels' rounding."""
    forget_all(twin)
    expected = infer(twin, prompt).choices[0]
    assert len(answer.choices[0].token_ids) == len(expected.token_ids)
    for mine, theirs in zip(answer.choices[0].logprobs, expected.logprobs, strict=True):
        assert mine.logprob is not None
        assert theirs.logprob == pytest.approx(mine.logprob, abs=tolerance)
        if mine.token_id != theirs.token_id:
            return  # equal likelihood: either one is right, and what follows differs


def text(n_tokens: int, seed: int) -> list[int]:
    numbers = random.Random(seed)
    return [_BOS, *(numbers.randrange(3, 259) for _ in range(n_tokens - 1))]


def when_decoding(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[int], None], *, then_fail: int = 0
) -> None:
    """Call ``action`` with the number of the step before every native decode.

    :param then_fail: number of a step that is evaluated, and then said to have failed.
    """
    native, steps = llama_cpp.llama_decode, itertools.count(1)

    def decode(ctx: Any, batch: Any) -> int:
        step = next(steps)
        action(step)
        status = int(native(ctx, batch))
        return -3 if step == then_fail else status

    monkeypatch.setattr(llama_cpp, "llama_decode", decode)


# -- prefixes ------------------------------------------------------------------------------


def test_the_kind_is_known_and_decides_about_drafts(kind: Kind, engine: LocalEngine) -> None:
    model = runtime_of(engine).model
    assert model.is_recurrent is not kind.can_cut
    assert model.n_swa == (WINDOW if kind.name == "gemma3" else 0)
    assert runtime_of(engine)._speculates is kind.can_cut, "a rejected draft must be cut off"


def test_answers_depend_on_the_very_first_token(engine: LocalEngine) -> None:
    """Else nothing below would show a prefix that was reused wrongly."""
    prompt = text(150, 1)
    plain, other = infer(engine, prompt), infer(engine, [_BOS, 7, *prompt[2:]])
    for mine, theirs in zip(plain.choices[0].logprobs, other.choices[0].logprobs, strict=False):
        if abs((mine.logprob or 0.0) - (theirs.logprob or 0.0)) > 0.02:
            return
    pytest.fail("the answers do not differ")


def test_chat_18_the_same_prompt_again_gets_the_same_answer(
    kind: Kind, engine: LocalEngine, twin: LocalEngine
) -> None:
    prompt = text(100, 2)
    cold, again = infer(engine, prompt), infer(engine, prompt)
    assert cold.choices[0].token_ids == again.choices[0].token_ids
    assert again.usage.cached_tokens == (99 if kind.can_cut else 0)
    assert_right(cold, prompt, twin)
    assert_right(again, prompt, twin)


def test_the_next_turn_continues_all_of_the_slot(engine: LocalEngine, twin: LocalEngine) -> None:
    prompt = text(100, 3)
    for _ in range(4):
        answer = infer(engine, prompt)
        prompt = [*prompt, *answer.choices[0].token_ids, *text(20, len(prompt))]
        follow_up = infer(engine, prompt, max_tokens=1)
        # The last token sampled was never evaluated.
        assert follow_up.usage.cached_tokens == answer.usage.prompt_tokens + 7
    assert_right(infer(engine, prompt), prompt, twin)


def test_a_prompt_that_parts_midway_is_cut_or_starts_anew(
    kind: Kind, engine: LocalEngine, twin: LocalEngine
) -> None:
    first = text(200, 4)
    other = [*first[:120], *text(30, 5)]
    infer(engine, first)
    for prompt, n_shared in ((other, 120), (first, 199), ([*first[:60], 9, 9], 60)):
        answer = infer(engine, prompt)
        assert answer.usage.cached_tokens == (n_shared if kind.can_cut else 0)
        assert_right(answer, prompt, twin)


def test_of_two_slots_the_one_that_can_be_used_is(
    kind: Kind, engine: LocalEngine, twin: LocalEngine
) -> None:
    base = text(80, 6)
    held = [*base, *infer(twin, base).choices[0].token_ids[:7]]
    infer(engine, [*held, *text(60, 7)])  # this slot shares most, but holds more
    infer(engine, base)  # this one holds just what is shared
    prompt = [*held, *text(60, 7)[:30], *text(9, 8)]
    answer = infer(engine, prompt)
    assert answer.usage.cached_tokens == (117 if kind.can_cut else 87)
    assert_right(answer, prompt, twin)


def test_n_choices_evaluate_the_prompt_once_and_are_all_right(
    engine: LocalEngine, twin: LocalEngine
) -> None:
    counters = runner_of(engine).counters
    prompt = text(150, 13)
    answer = infer(engine, prompt, n=3)
    # The prompt, its last token for two more choices, and never again.
    assert counters.prompt_tokens_evaluated == 152
    assert len({choice.token_ids for choice in answer.choices}) == 1
    assert_right(answer, prompt, twin)


def test_requests_with_one_prefix_wait_for_it_where_that_helps(
    kind: Kind, engine: LocalEngine, twin: LocalEngine
) -> None:
    counters = runner_of(engine).counters
    base = text(100, 14)
    prompts = [[*base, *text(11, 20 + i)[1:]] for i in range(3)]
    answers = infer_together(engine, prompts)
    assert counters.prompt_tokens_evaluated == (130 if kind.can_cut else 330)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_right(answer, prompt, twin)


def test_requests_beside_each_other_are_right(engine: LocalEngine, twin: LocalEngine) -> None:
    prompts = [text(n, n) for n in (1, 2, 3, 17, 90, 91, 200)]
    for prompt, answer in zip(prompts, infer_together(engine, prompts), strict=True):
        assert_right(answer, prompt, twin)


# -- steps that do not succeed ----------------------------------------------------------------


def test_str_02_leaving_during_prefill_leaves_nothing_wrong_behind(
    engine: LocalEngine, twin: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = text(400, 30)
    wanted, is_known = request(prompt), threading.Event()

    def leave(step: int) -> None:
        if step == 1:
            assert is_known.wait(10)
            assert engine.cancel(wanted.id)

    with monkeypatch.context() as patch:
        when_decoding(patch, leave)
        with engine.infer_stream(wanted) as stream:
            is_known.set()
            with pytest.raises(Cancelled):
                list(stream)
    engine.check()
    assert_right(infer(engine, prompt), prompt, twin)


@pytest.mark.parametrize("step_to_abort", [1, 2, 4, 6, 8])
def test_an_aborted_step_is_made_good(
    engine: LocalEngine, twin: LocalEngine, monkeypatch: pytest.MonkeyPatch, step_to_abort: int
) -> None:
    """As when a cancellation comes just as another request's step begins."""

    def abort(step: int) -> None:
        if step == step_to_abort:
            runtime_of(engine)._context.abort()

    prompts = [text(40, 31), text(90, 32), text(3, 33)]
    with monkeypatch.context() as patch:
        when_decoding(patch, abort)
        answers = infer_together(engine, prompts)
    engine.check()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_right(answer, prompt, twin)


@pytest.mark.parametrize("step_without_room", [1, 3, 5, 7])
def test_a_sequence_that_was_put_back_is_right(
    engine: LocalEngine,
    twin: LocalEngine,
    monkeypatch: pytest.MonkeyPatch,
    step_without_room: int,
) -> None:
    def refuse(step: int) -> None:
        if step == step_without_room:
            raise DecodeError(1)

    prompts = [text(40, 34), text(90, 35), text(3, 36)]
    with monkeypatch.context() as patch:
        when_decoding(patch, refuse)
        answers = infer_together(engine, prompts)
    assert runner_of(engine).counters.preempted == 1
    engine.check()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_right(answer, prompt, twin)


def test_answers_are_right_after_the_context_was_rebuilt(
    engine: LocalEngine, twin: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [text(40, 37), text(90, 38), text(3, 39)]
    with monkeypatch.context() as patch:
        when_decoding(patch, lambda _step: None, then_fail=4)
        answers = infer_together(engine, prompts)
    engine.check()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_right(answer, prompt, twin)


# -- states that went to the prompt cache and came back ------------------------------------------


def test_an_evicted_conversation_comes_back_and_goes_on(kind: Kind, twin: LocalEngine) -> None:
    engine = kind.start(slots=1, prompt_cache_mb=64)
    prompt = text(150, 40)
    answer = infer(engine, prompt)
    infer(engine, text(150, 41))  # takes the only slot
    follow_up = [*prompt, *answer.choices[0].token_ids, *text(20, 42)]
    back = infer(engine, follow_up)
    assert back.usage.cached_tokens == 157
    assert_right(back, follow_up, twin)
    engine.check()
    engine.close()


def test_an_evicted_state_is_cut_only_where_that_is_possible(kind: Kind, twin: LocalEngine) -> None:
    engine = kind.start(slots=1, prompt_cache_mb=64)
    prompt = text(200, 43)
    infer(engine, prompt)
    infer(engine, text(150, 44))
    parting = [*prompt[:120], *text(30, 45)]
    back = infer(engine, parting)
    # Of a sliding window only its end was saved, of recurrent memory only the last state.
    if kind.name == "llama":
        assert back.usage.cached_tokens == 120
    else:
        assert back.usage.cached_tokens < 2
    assert_right(back, parting, twin)
    engine.check()
    engine.close()


def test_a_slot_that_was_restored_is_cut_only_where_that_is_possible(
    kind: Kind, twin: LocalEngine
) -> None:
    engine = kind.start(slots=1, prompt_cache_mb=64)
    prompt = text(200, 46)
    answer = infer(engine, prompt)
    infer(engine, text(150, 47))
    infer(engine, [*prompt, *answer.choices[0].token_ids, *text(30, 48)])  # restores it
    for n_shared in (215, 120):
        parting = [*prompt, *answer.choices[0].token_ids, *text(30, 48)][:n_shared] + [9, 9]
        back = infer(engine, parting)
        assert_right(back, parting, twin)
    engine.check()
    engine.close()


def test_a_copy_that_is_still_to_come_is_not_mixed_with_a_restored_state(
    kind: Kind, twin: LocalEngine
) -> None:
    """llama.cpp moves the data of a copied slot only with the next decode."""
    engine = kind.start(slots=2, prompt_cache_mb=64)
    first, second, third = (text(150, 50 + i) for i in range(3))
    end = infer(engine, first).choices[0].token_ids
    infer(engine, second)
    infer(engine, third)  # the first one is in the prompt cache now
    prompts = [
        [*second[:100], 8, 8],  # copies the second's slot over the third's, where that can be cut
        [*first, *end, 7, 7],  # must take the second's slot, which is still to be copied
    ]
    for prompt, answer in zip(prompts, infer_together(engine, prompts), strict=True):
        assert_right(answer, prompt, twin)
    engine.check()
    engine.close()


def test_a_slot_is_saved_and_loaded_only_when_no_copy_is_to_come(engine: LocalEngine) -> None:
    infer(engine, text(50, 53), max_tokens=1)
    context, runner = runtime_of(engine)._context, runner_of(engine)
    seen: list[object] = []

    def copy() -> None:
        seen.append(state := context.save_slot(0))
        context.copy_slot(0, 1)
        assert state
        seen.extend(
            [context.save_slot(1), context.load_slot(0, state), context.load_slot(1, state)]
        )
        context.clear_slot(1)

    runner.call(copy)
    assert seen[1:] == [None, False, False]
    infer(engine, text(20, 54))
    runner.call(lambda: seen.append(context.save_slot(0)))
    assert seen[0] == seen[-1]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_came_before_answers_are_those_of_a_cold_start(
    kind: Kind, twin: LocalEngine, seed: int
) -> None:
    engine = kind.start(slots=3, prompt_cache_mb=1)
    numbers = random.Random(seed)
    roots = [text(n, seed * 10 + n) for n in (20, 90, 150)]
    talks = [list(root) for root in roots]
    for _ in range(20):
        prompts = [_variation(numbers, talks, roots) for _ in range(numbers.choice((1, 1, 2, 4)))]
        if numbers.random() < 0.3:
            with engine.infer_stream(request(prompts[0], max_tokens=100)) as stream:
                for _ in range(numbers.randrange(4)):
                    stream.poll(0.01)
        answers = infer_together(engine, prompts)
        engine.check()
        for prompt, answer in zip(prompts, answers, strict=True):
            assert_right(answer, prompt, twin)
            if len(prompt) < 300 and numbers.random() < 0.5:
                talks[numbers.randrange(3)] = [*prompt, *answer.choices[0].token_ids]
    engine.close()


def _variation(numbers: random.Random, talks: list[list[int]], roots: list[list[int]]) -> list[int]:
    """The next turn of a talk, a talk that parts somewhere, the same again, or a new start."""
    talk = numbers.choice(talks)
    new = text(numbers.choice((2, 4, 21, 60)), numbers.randrange(1000))[1:]
    match numbers.randrange(4):
        case 0:
            return [*talk, *new][:400]
        case 1:
            return [*talk[: numbers.randrange(1, len(talk) + 1)], *new]
        case 2:
            return talk
        case _:
            return numbers.choice(roots)


def test_gemma_is_right_beyond_its_sliding_window() -> None:
    """Prompts of more than 512 tokens: cold, cached, after parting prefixes, and evicted."""
    if not GEMMA3.exists():
        pytest.skip("Gemma is not here: run `make setup-test`")
    gemma = Kind("gemma-3-270m", GEMMA3)
    options = {"ctx_size": 1024, "slots": 1, "threads": None}
    twin = gemma.start(**options, speculate="off")
    engine = gemma.start(**options, prompt_cache_mb=64)
    tokenize = runtime_of(engine).model.tokenize
    things = "apple river stone cloud paper horse candle window bridge garden silver hammer".split()
    lines = [f"{n}. The {things[n % 12]} and the {things[n * 5 % 12]}.\n" for n in range(1, 80)]
    prompt = tokenize("".join(lines), add_special=True, parse_special=False)[:580]
    assert len(prompt) == 580
    question = tokenize("\n\nSome colours: red,", add_special=False, parse_special=False)
    parting = [*prompt[:550], *question]

    cold, cached = infer(engine, prompt), infer(engine, prompt)
    assert cached.usage.cached_tokens == 579
    assert cached.choices == cold.choices
    cut = infer(engine, parting)
    assert cut.usage.cached_tokens == 550
    back = infer(engine, prompt)
    assert back.usage.cached_tokens == 550
    infer(engine, question, max_tokens=1)  # takes the slot; the state goes to the prompt cache
    evicted = infer(engine, parting)
    assert evicted.usage.cached_tokens < 2, "its window was not saved back to there"
    for answer, of in ((cold, prompt), (cut, parting), (back, prompt), (evicted, parting)):
        # Quantised weights: how a prompt is divided into steps shows in the second decimal.
        assert_right(answer, of, twin, tolerance=0.3)
    for started in (engine, twin):
        started.check()
        started.close()
