"""Slots at work stand side by side, and in order, so that llama.cpp computes them together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ferrum_local.llm.prompt_cache import MIN_CACHED_TOKENS, PromptCache
from ferrum_local.llm.runner import Runner
from ferrum_local.llm.sequence import Ended, Event, TokenSampled
from ferrum_local.llm.slot_cache import SlotCache
from ferrum_local.llm.slot_gathering import STEADY_STEPS
from tests.fakes import wait_until
from tests.scripted_context import N_VOCAB, ScriptedContext, make_runner, make_sequence

N_SLOTS = 6


def busy_cache(busy: set[int], lengths: dict[int, int]) -> SlotCache:
    cache = SlotCache(N_SLOTS)
    for slot in range(N_SLOTS):
        placement = cache.place([100 * slot, 1])
        assert placement is not None and placement.slot == slot
        cache.append(slot, range(100 * slot, 100 * slot + lengths.get(slot, 5)))
    for slot in set(range(N_SLOTS)) - busy:
        cache.release(slot)
    return cache


@pytest.mark.parametrize(
    ("busy", "lengths", "moves"),
    [
        ({2, 3, 4}, {}, []),
        ({5}, {}, []),
        (set(), {}, []),
        ({0, 2}, {}, [(2, 1)]),
        ({0, 1, 5}, {2: 9, 3: 9, 4: 9}, [(5, 2)]),
        ({0, 2, 4}, {1: 3}, [(4, 1)]),
        ({0, 2, 4}, {1: 7, 3: 3}, [(0, 3)]),
    ],
)
def test_the_fewest_sequences_move_onto_what_holds_least(
    busy: set[int], lengths: dict[int, int], moves: list[tuple[int, int]]
) -> None:
    cache = busy_cache(busy, lengths)
    assert cache.moves_to_gather() == moves
    for source, target in moves:
        held = cache.tokens(source)
        cache.move(source, target)
        assert (cache.tokens(source), cache.tokens(target)) == ([], held)
    cache.check()
    assert cache.moves_to_gather() == []


@pytest.fixture
def context() -> ScriptedContext:
    return ScriptedContext(N_SLOTS)


@pytest.fixture
def runner(context: ScriptedContext) -> Iterator[Runner]:
    runner = make_runner(context, prompt_cache=PromptCache(1 << 20))
    yield runner
    runner.check()
    runner.stop()


def run(
    runner: Runner, context: ScriptedContext, lengths: list[int], n_prompt: int = 3
) -> list[list[Event]]:
    """Run one sequence in each slot, all begun together; ``lengths``: new tokens of each."""
    logs: list[list[Event]] = [[] for _ in lengths]
    context.step_may_end.clear()
    context.step_begins.clear()
    for i, length in enumerate(lengths):
        prompt = [(i + j * (i + 1)) % N_VOCAB for j in range(n_prompt)]
        sequence = make_sequence(logs[i], prompt, request_id=str(i), max_tokens=length)
        runner.submit([sequence])
        assert context.step_begins.wait(10)  # the first is under way; the others come together
    context.step_may_end.set()
    for log, length in zip(logs, lengths, strict=True):
        wait_until(lambda log=log: bool(log) and isinstance(log[-1], Ended))
        tokens = [event.token for event in log if isinstance(event, TokenSampled)]
        assert tokens == [i % N_VOCAB for i in range(1, length + 1)]
    return logs


def test_gaps_between_slots_at_work_are_closed(runner: Runner, context: ScriptedContext) -> None:
    run(runner, context, [90, 10, 90, 10, 90, 10])
    assert runner.counters.moved == 1, "4 to 1, or 0 to 3"
    apart = [slots for slots in context.steps if len(slots) == 3 and not _is_one_run(slots)]
    assert len(apart) == STEADY_STEPS
    assert _is_one_run(context.steps[-1])


def test_nothing_moves_for_a_few_tokens(runner: Runner, context: ScriptedContext) -> None:
    run(runner, context, [30, 10, 30, 10, 30, 10])
    assert runner.counters.moved == 0


def test_what_a_move_evicts_comes_back_from_the_prompt_cache(
    runner: Runner, context: ScriptedContext
) -> None:
    n_prompt = MIN_CACHED_TOKENS + 1
    logs = run(runner, context, [90, 10, 90, 10, 90, 10], n_prompt)
    assert runner.counters.moved == 1
    evaluated = runner.counters.prompt_tokens_evaluated
    again: list[list[Event]] = [[] for _ in logs]
    for i in (1, 3, 5):
        prompt = [(i + j * (i + 1)) % N_VOCAB for j in range(n_prompt)]
        runner.submit([make_sequence(again[i], prompt, request_id=f"again {i}")])
        wait_until(lambda i=i: bool(again[i]) and isinstance(again[i][-1], Ended))
    assert runner.counters.prompt_tokens_evaluated - evaluated == 3, "a last token each"


def test_without_a_prompt_cache_no_conversation_is_given_up(context: ScriptedContext) -> None:
    runner = make_runner(context)
    run(runner, context, [90, 10, 90, 10, 90, 10], MIN_CACHED_TOKENS)
    assert runner.counters.moved == 0
    runner.stop()


def test_a_sequence_that_cannot_be_moved_goes_on_where_it_is(
    runner: Runner, context: ScriptedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(slot: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(context, "save_slot", fail)
    run(runner, context, [90, 10, 90, 10, 90, 10], MIN_CACHED_TOKENS)
    assert runner.counters.moved == 0


def test_decoded_tokens_go_first_and_prompts_of_one_length_together(
    runner: Runner, context: ScriptedContext
) -> None:
    run(runner, context, [5] * N_SLOTS)
    both = context.steps[1]  # the first one's last prompt token, and the others' whole prompts
    assert both == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert all(slots == sorted(slots) for slots in context.steps)


def _is_one_run(slots: list[int]) -> bool:
    return slots == [*range(slots[0], slots[0] + len(slots))]
