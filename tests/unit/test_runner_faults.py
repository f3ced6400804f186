"""What the decode thread does when a step goes wrong. Faults come from a scripted context."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ferrum_local.errors import DeadlineExceeded, GenerationFailed, QueueFull, Unavailable
from ferrum_local.llm.runner import Runner
from ferrum_local.llm.sequence import Ended, Event, Failed, TokenSampled
from ferrum_local.types import FinishReason
from tests.fakes import wait_until
from tests.scripted_context import ScriptedContext, make_runner, make_sequence


@pytest.fixture
def context() -> ScriptedContext:
    return ScriptedContext(4)


@pytest.fixture
def runner(context: ScriptedContext) -> Iterator[Runner]:
    runner = make_runner(context)
    yield runner
    context.step_may_end.set()
    runner.check()
    runner.stop()
    assert context.closed


def is_over(events: list[Event]) -> bool:
    return bool(events) and isinstance(events[-1], (Ended, Failed))


def tokens_of(events: list[Event]) -> list[int]:
    return [e.token for e in events if isinstance(e, TokenSampled)]


def run(runner: Runner, prompts: list[list[int]]) -> list[list[Event]]:
    """Run all prompts at once to their ends."""
    logs: list[list[Event]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        runner.submit([make_sequence(logs[i], prompt, request_id=str(i))])
    for log in logs:
        wait_until(lambda log=log: is_over(log))
    return logs


def test_a_failed_batch_fails_only_the_sequence_at_fault(
    runner: Runner, context: ScriptedContext
) -> None:
    context.poison = 31
    good, bad, other = run(runner, [[1, 2, 3], [4, 31, 5], [6, 7, 8]])
    assert isinstance(bad[-1], Failed)
    assert isinstance(bad[-1].error, GenerationFailed)
    for log in (good, other):
        assert isinstance(log[-1], Ended)
        assert tokens_of(log) == [1, 2, 3, 4, 5]
    assert context.n_rebuilt >= 1
    (after,) = run(runner, [[1, 2, 3, 9]])
    assert tokens_of(after) == [1, 2, 3, 4, 5], "the next request works"


def test_a_passing_failure_fails_nobody(runner: Runner, context: ScriptedContext) -> None:
    context.statuses = {2: -3}
    logs = run(runner, [[1, 2, 3], [4, 5, 6]])
    assert [tokens_of(log) for log in logs] == [[1, 2, 3, 4, 5]] * 2
    assert context.n_rebuilt == 1


def test_nan_logits_fail_only_their_sequence(runner: Runner, context: ScriptedContext) -> None:
    logs: list[list[Event]] = [[], []]
    context.step_may_end.clear()
    first = make_sequence(logs[0], [1, 2], request_id="a", max_tokens=200)
    runner.submit([first])
    runner.submit([make_sequence(logs[1], [5, 6], request_id="b")])
    assert context.step_begins.wait(10)
    context.nan_slots = {first.slot}
    context.step_may_end.set()
    for log in logs:
        wait_until(lambda log=log: is_over(log))
    assert isinstance(logs[0][-1], Failed)
    assert tokens_of(logs[1]) == [1, 2, 3, 4, 5]


def test_a_full_kv_cache_puts_the_youngest_back_and_it_completes(
    runner: Runner, context: ScriptedContext
) -> None:
    context.statuses = {3: 1}
    logs = run(runner, [[1, 2, 3], [4, 5, 6]])
    assert [tokens_of(log) for log in logs] == [[1, 2, 3, 4, 5]] * 2
    assert runner.counters.preempted == 1


def test_memory_that_cannot_be_cut_is_computed_again() -> None:
    context = ScriptedContext(2, can_cut=False)
    runner = make_runner(context)
    context.statuses = {2: 1}
    logs = run(runner, [[1, 2, 3], [1, 2, 4]])
    assert [tokens_of(log) for log in logs] == [[1, 2, 3, 4, 5]] * 2
    runner.check()
    runner.stop()


def test_an_internal_fault_ends_the_running_and_not_the_thread(
    runner: Runner, context: ScriptedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_kwargs: object) -> int:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(context, "add_tokens", broken)
        (log,) = run(runner, [[1, 2]])
        assert isinstance(log[-1], Failed)
        assert "injected" not in log[-1].error.message, "no internals in what clients read"
    (log,) = run(runner, [[1, 2]])
    assert tokens_of(log) == [1, 2, 3, 4, 5]


def test_cancel_aborts_a_step_that_serves_nobody_else(
    runner: Runner, context: ScriptedContext
) -> None:
    events: list[Event] = []
    sequence = make_sequence(events, [1, 2, 3])
    context.step_may_end.clear()
    runner.submit([sequence])
    assert context.step_begins.wait(10)
    wait_until(lambda: bool(runner._in_step))
    runner.end([sequence], FinishReason.CANCELLED)
    context.step_may_end.set()
    wait_until(lambda: is_over(events))
    assert events[-1][1] is FinishReason.CANCELLED
    assert context.n_steps == 1
    assert not tokens_of(events)
    assert runner.counters.cancelled == 1
    assert sequence.sampler.closed  # type: ignore[attr-defined]


def test_cancel_does_not_abort_a_step_that_others_share(
    runner: Runner, context: ScriptedContext
) -> None:
    logs: list[list[Event]] = [[], []]
    context.step_may_end.clear()
    sequences = [make_sequence(log, [i], request_id=str(i)) for i, log in enumerate(logs)]
    for sequence in sequences:
        runner.submit([sequence])
    context.step_may_end.set()
    wait_until(lambda: bool(tokens_of(logs[1])))
    runner.end(sequences[:1], FinishReason.CANCELLED)
    wait_until(lambda: all(is_over(log) for log in logs))
    assert tokens_of(logs[1]) == [1, 2, 3, 4, 5]


def test_a_queued_request_can_be_cancelled(runner: Runner, context: ScriptedContext) -> None:
    context.step_may_end.clear()
    logs: list[list[Event]] = [[] for _ in range(5)]
    sequences = [make_sequence(log, [i], request_id=str(i)) for i, log in enumerate(logs)]
    for sequence in sequences:
        runner.submit([sequence])
    runner.end(sequences[4:], FinishReason.CANCELLED)
    context.step_may_end.set()
    wait_until(lambda: all(is_over(log) for log in logs))
    assert not tokens_of(logs[4])
    assert runner.n_queued == 0


def test_a_full_queue_is_refused_with_a_time_to_come_back(context: ScriptedContext) -> None:
    runner = make_runner(context, max_queue=1)
    logs: list[list[Event]] = [[] for _ in range(6)]
    running = [make_sequence(logs[i], [i], request_id=str(i), max_tokens=10**6) for i in range(4)]
    for sequence in running:
        runner.submit([sequence])
        wait_until(lambda sequence=sequence: sequence.slot >= 0)
    runner.submit([make_sequence(logs[4], [4], request_id="4")])
    with pytest.raises(QueueFull) as refused:
        runner.submit([make_sequence(logs[5], [5], request_id="5")])
    assert refused.value.retry_after_s > 0
    runner.end(running, FinishReason.CANCELLED)
    wait_until(lambda: is_over(logs[4]))
    assert tokens_of(logs[4]) == [1, 2, 3, 4, 5], "what was accepted is not lost"
    runner.stop()


def test_a_deadline_ends_a_request(context: ScriptedContext) -> None:
    runner = make_runner(context)
    events: list[Event] = []
    runner.submit([make_sequence(events, [1], max_tokens=10**6, deadline_at_s=runner._clock())])
    wait_until(lambda: is_over(events))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, DeadlineExceeded)
    runner.stop()


def test_stop_fails_what_runs_and_refuses_what_comes(context: ScriptedContext) -> None:
    runner = make_runner(context)
    events: list[Event] = []
    runner.submit([make_sequence(events, [1], max_tokens=10**6)])
    wait_until(lambda: bool(tokens_of(events)))
    runner.stop()
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, Unavailable)
    with pytest.raises(Unavailable):
        runner.submit([make_sequence([], [1])])


def test_str_05_many_cancels_and_resubmits_leak_no_slot(
    runner: Runner, context: ScriptedContext
) -> None:
    for i in range(100):
        events: list[Event] = []
        sequence = make_sequence(events, [1, 2, i % 30], request_id=str(i), max_tokens=10**6)
        runner.submit([sequence])
        wait_until(lambda events=events: bool(tokens_of(events)))
        canceller = threading.Thread(target=runner.end, args=([sequence], FinishReason.CANCELLED))
        canceller.start()
        canceller.join()
        wait_until(lambda events=events: is_over(events))
    assert runner.n_running == 0
    assert runner.n_queued == 0


def test_a_context_that_cannot_be_made_again_fails_what_is_there_and_is_tried_anew(
    runner: Runner, context: ScriptedContext
) -> None:
    context.rebuild_fails = True
    context.statuses = {1: -3}
    (log,) = run(runner, [[1, 2]])
    assert isinstance(log[-1], Failed)
    (log,) = run(runner, [[1, 2]])
    assert isinstance(log[-1], Failed)
    assert "no memory" in log[-1].error.message
    context.rebuild_fails = False
    (log,) = run(runner, [[1, 2]])
    assert tokens_of(log) == [1, 2, 3, 4, 5]


def test_trouble_while_moving_the_kv_cache_fails_one_request_and_leaks_no_slot(
    runner: Runner, context: ScriptedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(_slot: int, _n_tokens: int) -> bool:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(context, "truncate_slot", no_memory)
        for _ in range(6):  # more than there are slots
            (log,) = run(runner, [[1, 2]])
            assert isinstance(log[-1], Failed)
    logs = run(runner, [[i, 2] for i in range(4)])
    assert all(tokens_of(log) == [1, 2, 3, 4, 5] for log in logs)
