"""The scheduler alone, with sequences that no model runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum_local.llm.scheduler import (
    AGEING_S,
    Scheduler,
    StepPlan,
    StepTimes,
    common_prefix_length,
)
from ferrum_local.llm.sequence import Sequence, SequenceState
from ferrum_local.types import Priority

N_BATCH = 64


def make(n_prompt: int = 10, **changes: Any) -> Sequence:
    fields: dict[str, Any] = {
        "request_id": "r", "index": 0, "tokens": list(range(n_prompt)), "n_prompt": n_prompt,
        "max_tokens": 10, "min_tokens": 0, "eog_tokens": frozenset(), "sampler": None,
        "deliver": lambda _event: None,
    }  # fmt: skip
    return Sequence(**{**fields, **changes})


def make_scheduler() -> Scheduler:
    return Scheduler(n_batch=N_BATCH, n_score_tokens=16, times=StepTimes())


def admitted(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        n_computed = sequence.n_computed
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
        sequence.n_computed = n_computed
        if sequence.first_token_s is not None:
            sequence.state = SequenceState.DECODE


def run_step(scheduler: Scheduler) -> list[Sequence]:
    """Pretend that a step happened; returns who was in it."""
    plan = scheduler.plan()
    for sequence in plan.decode:
        sequence.n_computed += 1
        sequence.tokens.append(0)
    for sequence, n_tokens in plan.prefill:
        sequence.n_computed += n_tokens
        if not sequence.n_pending:
            sequence.state = SequenceState.DECODE
            sequence.tokens.append(0)
    for sequence in plan.sequences:
        if sequence.n_generated >= sequence.max_tokens:
            scheduler.remove(sequence)
    return plan.sequences


@given(
    prompts=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    decoding=st.integers(0, 8),
)
def test_a_step_holds_every_decoding_sequence_and_keeps_the_budget(
    prompts: list[int], decoding: int
) -> None:
    scheduler = make_scheduler()
    for _ in range(decoding):
        sequence = make(5, n_computed=4, first_token_s=-1.0)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
        sequence.state = SequenceState.DECODE
    for n_prompt in prompts:
        sequence = make(n_prompt)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
    plans = [scheduler.plan(), scheduler.plan()]
    prefill = [entry for plan in plans for entry in plan.prefill]
    for plan in plans:
        assert len(plan.decode) in (0, decoding)
        n_prefill = sum(n for _, n in plan.prefill)
        assert len(plan.decode) + n_prefill <= N_BATCH
        assert n_prefill <= max(
            scheduler.times.prefill_budget(decoding, len(prompts), N_BATCH - decoding),
            sum(n == 1 for n in prompts),
        )
        assert all(0 < n <= s.n_pending for s, n in plan.prefill)
    assert not decoding or any(plan.decode for plan in plans), "streams always go on"
    assert prefill, "prefill always goes on, however many streams run"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from(list(Priority))), max_size=20))
def test_no_admitted_sequence_starves(prompts: list[tuple[int, Priority]]) -> None:
    scheduler = make_scheduler()
    for n_prompt, priority in prompts:
        sequence = make(n_prompt, priority=priority)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
    for _ in range(2000):
        if not scheduler.running:
            break
        assert run_step(scheduler)
    assert not scheduler.running


def test_the_oldest_long_prompt_advances_while_short_ones_keep_coming() -> None:
    scheduler = make_scheduler()
    long_prompt = make(500)
    scheduler.waiting.append(long_prompt)
    scheduler.admit(long_prompt, 0.0)
    for _ in range(200):
        short = make(8, max_tokens=1)
        scheduler.waiting.append(short)
        scheduler.admit(short, 0.0)
        run_step(scheduler)
        if long_prompt.state is not SequenceState.PREFILL:
            break
    assert long_prompt.state is not SequenceState.PREFILL


def test_priority_goes_first_and_waiting_raises_it() -> None:
    scheduler = make_scheduler()
    background = make(priority=Priority.BACKGROUND, arrived_s=0.0)
    interactive = make(priority=Priority.INTERACTIVE, arrived_s=5.0)
    realtime = make(priority=Priority.REALTIME, arrived_s=6.0)
    scheduler.waiting += [background, interactive, realtime]
    assert scheduler.waiting_in_order(7.0) == [realtime, interactive, background]
    late = make(priority=Priority.REALTIME, arrived_s=3 * AGEING_S)
    scheduler.waiting = [late, background]
    assert scheduler.waiting_in_order(3 * AGEING_S + 1)[0] is background


def test_a_client_with_nothing_running_goes_before_one_that_has_a_slot() -> None:
    scheduler = make_scheduler()
    running = make(client_id="busy")
    scheduler.waiting.append(running)
    scheduler.admit(running, 0.0)
    greedy, modest = make(client_id="busy", arrived_s=1.0), make(client_id="new", arrived_s=2.0)
    scheduler.waiting += [greedy, modest]
    assert scheduler.waiting_in_order(3.0) == [modest, greedy]


def test_a_prompt_waits_for_the_same_prefix_that_is_being_evaluated() -> None:
    scheduler = make_scheduler()
    first, second = make(100), make(100, request_id="other")
    scheduler.waiting += [first, second]
    scheduler.admit(first, 0.0)
    assert scheduler.must_wait_for_prefix(second, n_reusable=0, min_gain=16)
    while first.n_pending > 1:
        assert scheduler.must_wait_for_prefix(second, n_reusable=first.n_computed, min_gain=16)
        run_step(scheduler)
    assert not scheduler.must_wait_for_prefix(second, n_reusable=99, min_gain=16)


def test_a_prompt_does_not_wait_for_a_prefix_that_another_never_finishes() -> None:
    scheduler = make_scheduler()
    first, second = make(100), make(100, request_id="other")
    scheduler.waiting += [first, second]
    scheduler.admit(first, 0.0)
    assert scheduler.must_wait_for_prefix(second, n_reusable=0, min_gain=16)
    scheduler.remove(first)  # its client left
    assert not scheduler.must_wait_for_prefix(second, n_reusable=40, min_gain=16)


def test_where_memory_cannot_be_cut_only_whole_prompts_are_waited_for() -> None:
    scheduler = Scheduler(n_batch=N_BATCH, n_score_tokens=16, times=StepTimes(), can_cut=False)
    first = make(100)
    parting = make(100, request_id="parting", tokens=[*range(60), *range(500, 540)])
    same = make(100, request_id="same")
    longer = make(130, request_id="longer")
    scheduler.waiting += [first, parting, same, longer]
    scheduler.admit(first, 0.0)

    def waits(sequence: Sequence) -> bool:
        return scheduler.must_wait_for_prefix(sequence, n_reusable=0, min_gain=16)

    assert not waits(parting), "no step ends after just the 60 tokens that it shares"
    while first.n_pending > 1:
        assert waits(same)
        assert waits(longer)
        run_step(scheduler)
    assert first.n_computed == 99
    assert not waits(same)
    assert waits(longer)
    run_step(scheduler)
    assert first.n_computed == 100
    assert not waits(longer)


def test_a_burst_is_prefilled_at_full_speed_but_no_stream_is_held_up_by_a_late_prompt() -> None:
    scheduler = make_scheduler()
    scheduler.times = StepTimes(prefill_s=0.01)
    scheduler.times.record(1, 0, 0.05)
    stream, prompt = make(5, n_computed=4), make(60, arrived_s=1.0)
    for sequence in (stream, prompt):
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
    stream.state = SequenceState.DECODE

    def n_prefilled() -> int:
        return max(sum(n for _, n in scheduler.plan().prefill) for _ in range(2))

    stream.first_token_s = 2.0  # both came before either had begun
    assert n_prefilled() > 20
    stream.first_token_s = 0.5
    assert n_prefilled() <= 12
    stream.first_token_s, stream.priority = 2.0, Priority.REALTIME
    assert n_prefilled() <= 12


def test_prompts_of_a_burst_are_cut_only_where_a_large_part_fits() -> None:
    scheduler = Scheduler(n_batch=512, n_score_tokens=16, times=StepTimes())
    for _ in range(8):
        sequence = make(42)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
    scheduler.times.prefill_s = 0.6 / 240  # a step of 240 tokens: 5 prompts, and 35 are left
    assert [n for _, n in scheduler.plan().prefill] == [42] * 5
    for sequence in scheduler.running:
        sequence.tokens *= 2
    assert [n for _, n in scheduler.plan().prefill] == [84, 84, 56]


def test_prompts_of_a_burst_end_together_but_one_alone_and_an_opening_do_not() -> None:
    scheduler = make_scheduler()
    admitted(scheduler, make(20))
    assert [n for _, n in scheduler.plan().prefill] == [19]
    admitted(scheduler, with_opening := make(20), make(10))
    with_opening.opening = [1, 2]
    assert sorted(n for _, n in scheduler.plan().prefill) == [10, 19, 20]


def test_recurrent_memory_has_every_prompt_end_alone() -> None:
    scheduler = Scheduler(n_batch=N_BATCH, n_score_tokens=16, times=StepTimes(), can_cut=False)
    admitted(scheduler, make(20), make(20))
    assert [n for _, n in scheduler.plan().prefill] == [19, 19]


def test_streams_of_a_burst_wait_one_step_for_its_last_prompts() -> None:
    scheduler = make_scheduler()
    stream = make(5, n_computed=4, first_token_s=1.0)
    admitted(scheduler, stream, make(20), make(20))
    held = scheduler.plan()
    assert (held.decode, [n for _, n in held.prefill]) == ([], [20, 20])
    # Were there always another prompt, as of requests for one token, streams still go on.
    assert scheduler.plan().decode == [stream]
    assert scheduler.plan().decode == []
    # Nor does a late prompt have them wait twice in a row.
    admitted(scheduler, make(20, arrived_s=2.0))
    assert scheduler.plan().decode == [stream]
    assert scheduler.plan().decode == []


def test_a_step_without_streams_is_none_that_they_waited_for() -> None:
    scheduler = make_scheduler()
    admitted(scheduler, leader := make(20), make(20))
    assert scheduler.plan().decode == []
    for sequence in scheduler.running:
        sequence.n_computed = 20
    leader.state, leader.first_token_s = SequenceState.DECODE, 1.0
    admitted(scheduler, make(20))
    assert scheduler.plan().decode == []
    assert scheduler.plan().decode == [leader]


def test_streams_of_a_burst_go_on_beside_a_prompt_of_several_steps() -> None:
    scheduler = make_scheduler()
    stream = make(5, n_computed=4, first_token_s=1.0)
    admitted(scheduler, stream, make(300))
    for _ in range(3):
        assert scheduler.plan().decode == [stream]


def test_beside_streams_steps_of_decode_and_of_prefill_take_turns() -> None:
    scheduler = make_scheduler()
    stream = make(5, n_computed=4, first_token_s=-1.0)
    prompt, cached = make(40), make(20, n_computed=19)
    admitted(scheduler, stream, prompt, cached)
    kinds = []
    for _ in range(4):
        plan = scheduler.plan()
        assert not plan.may_draft, "guesses would make the stream wait longer"
        kinds.append((plan.decode == [stream], [s for s, _ in plan.prefill]))
    assert kinds == [(False, [prompt]), (True, [cached])] * 2


def run_timed(scheduler: Scheduler, n_steps: int, *, small_s: float) -> list[StepPlan]:
    """Run steps: of decode in 10 ms, of two prompt tokens in ``small_s``, of many in 3 ms each."""
    plans = []
    for _ in range(n_steps):
        plan = scheduler.plan()
        for sequence, n_tokens in plan.prefill:
            sequence.n_computed += n_tokens
        n_prefill = sum(n for _, n in plan.prefill)
        step_s = 0.010 if plan.decode else n_prefill * small_s / 2
        if n_prefill >= 32:
            step_s = n_prefill * 0.003
        scheduler.times.record(len(plan.decode), n_prefill, step_s)
        plans.append(plan)
    return plans


def beside_a_stream(*prompts: Sequence) -> Scheduler:
    scheduler = make_scheduler()
    admitted(scheduler, make(5, n_computed=4, first_token_s=-1.0, max_tokens=9999), *prompts)
    return scheduler


def joined(plans: list[StepPlan]) -> list[bool]:
    return [bool(plan.decode and plan.prefill) for plan in plans]


def test_where_the_least_prefill_would_hold_up_streams_it_joins_their_steps() -> None:
    prompt = make(9000)
    scheduler = beside_a_stream(prompt)
    assert not any(joined(run_timed(scheduler, 100, small_s=0.016)))
    steps = joined(run_timed(scheduler, 100, small_s=0.022))
    assert all(steps[-50:])
    assert scheduler.plan().prefill == [(prompt, 1)]


def test_each_prompt_is_measured_before_it_joins() -> None:
    first = make(9000)
    scheduler = beside_a_stream(first)
    run_timed(scheduler, 100, small_s=0.030)
    scheduler.remove(first)
    admitted(scheduler, make(9000, request_id="second"))
    assert not any(joined(run_timed(scheduler, 100, small_s=0.012)))


def test_a_prompt_that_joined_is_measured_again_after_a_while() -> None:
    scheduler = beside_a_stream(make(9000))
    assert joined(run_timed(scheduler, 100, small_s=0.030))[-1]
    assert not any(joined(run_timed(scheduler, 1000, small_s=0.012))[-100:])


def test_large_steps_that_are_cheap_are_taken_whatever_small_ones_cost() -> None:
    scheduler = beside_a_stream(make(9000))
    run_timed(scheduler, 100, small_s=0.030)
    for _ in range(100):
        scheduler.times.record(0, 200, 200 * 0.0001)
    assert not scheduler.times.must_join(1)


def n_steps_until_answered(scheduler: Scheduler, sequence: Sequence, small_s: float) -> int:
    for n_steps in range(1, 1000):
        run_timed(scheduler, 1, small_s=small_s)
        if not sequence.n_pending:
            return n_steps
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("small_s", [0.017, 0.030])
def test_a_short_prompt_does_not_wait_behind_a_long_one(small_s: float) -> None:
    long, short = make(9000), make(21, request_id="short")
    scheduler = beside_a_stream(long)
    run_timed(scheduler, 50, small_s=small_s)
    admitted(scheduler, short)
    before = long.n_computed
    assert n_steps_until_answered(scheduler, short, small_s) <= 44
    assert long.n_computed - before >= 18, "the oldest is sure of half"


def test_prompts_that_are_as_long_or_less_urgent_do_not_take_turns() -> None:
    for other in (
        make(8000, request_id="other"),
        make(21, request_id="other", priority=Priority.BACKGROUND),
    ):
        oldest = make(9000)
        scheduler = beside_a_stream(oldest, other)
        run_timed(scheduler, 100, small_s=0.017)
        assert not other.n_computed


def test_small_steps_are_budgeted_by_what_small_steps_cost() -> None:
    times = StepTimes(prefill_s=0.003)
    for _ in range(100):
        times.record(1, 0, 0.020)
        times.record(0, 8, 8 * 0.005)
    assert times.prefill_s == 0.003
    assert times.prefill_budget(1, 1, 512) == 8  # 2 x 20 ms / 5 ms


def test_a_first_guess_that_was_far_too_high_does_not_keep_steps_small_for_ever() -> None:
    times = StepTimes(prefill_s=0.010)
    assert times.prefill_budget(0, 1, 512) == 25  # below what steady steps are told from
    for _ in range(100):
        n = times.prefill_budget(0, 1, 512)
        times.record(0, n, n * 0.002)
    assert times.prefill_budget(0, 1, 512) > 120


def test_a_suspect_runs_alone() -> None:
    scheduler = make_scheduler()
    sequences = [make(5) for _ in range(3)]
    for sequence in sequences:
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
        sequence.suspect = True
    assert scheduler.plan().sequences == [sequences[0]]


def test_a_scored_prompt_is_cut_to_the_rows_of_logits_there_are() -> None:
    scheduler = make_scheduler()
    scored = make(60, n_prompt_logprobs=0)
    scheduler.waiting.append(scored)
    scheduler.admit(scored, 0.0)
    assert scheduler.plan().prefill == [(scored, 16)]


def test_chat_18_the_last_prompt_token_is_evaluated_alone() -> None:
    scheduler = make_scheduler()
    for n_prompt in (1, 2, 3, 64, 65, 66, 67, 200):
        sequence = make(n_prompt, max_tokens=1)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
        chunks = []
        while sequence.state is SequenceState.PREFILL:
            chunks.append(scheduler.plan().prefill[0][1])
            run_step(scheduler)
            if sequence.state is SequenceState.DONE:
                break
        assert sum(chunks) == n_prompt
        assert chunks[-1] == 1
        assert n_prompt < 4 or 1 not in chunks[:-1], chunks


def test_the_prefill_budget_follows_what_was_measured() -> None:
    times = StepTimes()
    for _ in range(50):
        times.record(8, 0, 0.048)
        times.record(0, 60, 0.180)
    assert times.decode_s(8) == 0.048
    assert abs(times.prefill_s - 0.003) < 1e-6
    assert times.prefill_budget(8, 1, 512) == 32  # 2 decode steps of 48 ms at 3 ms a token
    assert times.prefill_budget(0, 1, 512) == 83  # a quarter of a second
    assert times.prefill_budget(0, 8, 512) == 200  # a burst: 0.6 s
    slow = StepTimes(prefill_s=10.0)
    assert slow.prefill_budget(0, 1, 512) > 0, "prefill never stops altogether"


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix_length(a: list[int], b: list[int]) -> None:
    n = common_prefix_length(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(
    pending=st.lists(st.integers(1, 80), min_size=1, max_size=12),
    prompts=st.lists(st.integers(1, 300), max_size=6),
    decode_s=st.sampled_from([0.001, 0.1, 10.0]),
)
def test_forced_tokens_go_in_together_and_keep_the_batch(
    pending: list[int], prompts: list[int], decode_s: float
) -> None:
    scheduler = make_scheduler()
    scheduler.times.record(len(pending), 0, decode_s)
    for n_pending in pending:
        sequence = make(5, tokens=list(range(5 + n_pending)), n_computed=5, first_token_s=-1.0)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 0.0)
        sequence.state = SequenceState.DECODE
    for n_prompt in prompts:
        sequence = make(n_prompt, arrived_s=1.0)
        scheduler.waiting.append(sequence)
        scheduler.admit(sequence, 1.0)
    plans = [scheduler.plan(), scheduler.plan()]  # one may be a turn of prefill alone
    for plan in plans:
        n_decode = sum(min(s.n_pending, 1 + plan.n_forced) for s in plan.decode)
        assert n_decode + sum(n for _, n in plan.prefill) <= N_BATCH
        assert len(plan.decode) in (0, len(pending))
        if plan.decode and any(n > 1 for n in pending):
            assert plan.n_forced >= 1, "a jump goes on in every step of decode"
    assert any(plan.decode for plan in plans)
    assert not prompts or any(plan.prefill for plan in plans)


def test_one_stream_alone_takes_a_jump_at_once_whatever_was_measured() -> None:
    scheduler = make_scheduler()
    scheduler.times.prefill_s = 1.0  # so slow that a measured budget would be tiny
    sequence = make(5, tokens=list(range(20)), n_computed=5, state=SequenceState.DECODE)
    scheduler.running.append(sequence)
    assert scheduler.plan().n_forced >= sequence.n_pending - 1
