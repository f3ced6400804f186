"""Forced tokens and failing matchers on the decode thread, with scripted parts."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from ferrum_local.errors import GenerationFailed
from ferrum_local.llm.runner import Runner
from ferrum_local.llm.sequence import Ended, Event, Failed, Sequence, TokenSampled
from ferrum_local.types import FinishReason
from tests.fakes import wait_until
from tests.scripted_context import (
    N_BATCH,
    N_VOCAB,
    ScriptedContext,
    ScriptedSampler,
    make_runner,
    make_sequence,
)

FORCED = [20, 21, 22, 23]


class AcceptingSampler(ScriptedSampler):
    def accept(self, _token: int) -> None: ...


class ScriptedMatcher:
    """Forces FORCED after every sampled token; finished after ``n_sampled`` of them.

    :param fails_at: sampled tokens after which it fails, with an error of this kind.
    """

    def __init__(self, n_sampled: int, fails_at: dict[int, BaseException] | None = None) -> None:
        self._left = n_sampled
        self._fails_at = fails_at or {}
        self._n_sampled = 0
        self._may_force = False
        self.is_finished = False

    def accept(self, _token: int) -> None:
        self._n_sampled += 1
        if self._n_sampled in self._fails_at:
            raise self._fails_at[self._n_sampled]
        self._left -= 1
        self._may_force = True

    def take_forced(self, n_most: int) -> list[int]:
        taken = FORCED[:n_most] if self._may_force else []
        self._may_force = False
        self.is_finished = not self._left
        return taken


class ScriptedMasks:
    def fill(self, _rows: object) -> None: ...

    def apply(self, *_args: object, **_kwargs: object) -> int:
        return 0


@pytest.fixture
def context() -> ScriptedContext:
    return ScriptedContext(4)


@pytest.fixture
def runner(context: ScriptedContext) -> Iterator[Runner]:
    context.options = types.SimpleNamespace(n_batch=N_BATCH, n_slots=4, n_threads=1)  # type: ignore[attr-defined]
    runner = make_runner(context)
    runner._executor.__dict__["_masks"] = ScriptedMasks()
    yield runner
    runner.check()
    runner.stop()


def constrained(events: list[Event], prompt: list[int], n_sampled: int, **changes: Any) -> Sequence:
    fields: dict[str, Any] = {
        "max_tokens": 50, "sampler": AcceptingSampler(), "matcher": ScriptedMatcher(n_sampled),
    }  # fmt: skip
    return make_sequence(events, prompt, **{**fields, **changes})


def run(runner: Runner, *sequences: Sequence) -> None:
    """``deliver`` of each is ``append`` of its own list of events."""
    for i, sequence in enumerate(sequences):
        sequence.request_id = str(i)
        runner.submit([sequence])
    for sequence in sequences:
        log: list[Event] = sequence.deliver.__self__  # type: ignore[attr-defined]
        wait_until(lambda log=log: bool(log) and isinstance(log[-1], (Ended, Failed)))


def tokens_of(events: list[Event]) -> list[int]:
    return [e.token for e in events if isinstance(e, TokenSampled)]


def test_forced_tokens_are_delivered_and_evaluated_in_one_step(
    runner: Runner, context: ScriptedContext
) -> None:
    log: list[Event] = []
    run(runner, constrained(log, [1, 2], 3))
    assert tokens_of(log) == [1, *FORCED, 2, *FORCED, 3, *FORCED]
    assert isinstance(log[-1], Ended)
    assert log[-1].reason is FinishReason.STOP
    # Two for the prompt, one for each jump but the last, which nothing follows.
    assert context.n_steps == 4
    assert runner.counters.generated_tokens == 15


def test_an_opening_goes_in_with_the_last_prompt_token(
    runner: Runner, context: ScriptedContext
) -> None:
    log: list[Event] = []
    run(runner, constrained(log, [1, 2, 3], 1, opening=[9, 8, 7]))
    assert tokens_of(log) == [9, 8, 7, 1, *FORCED]
    assert context.n_steps == 2


@pytest.mark.parametrize("max_tokens", [1, 2, 4, 7])
def test_max_tokens_ends_a_jump(runner: Runner, max_tokens: int) -> None:
    log: list[Event] = []
    run(runner, constrained(log, [1, 2], 9, opening=[9][:max_tokens], max_tokens=max_tokens))
    assert tokens_of(log) == [9, 1, *FORCED, 2][:max_tokens]
    assert isinstance(log[-1], Ended)
    assert log[-1].reason is FinishReason.LENGTH


def test_an_opening_longer_than_a_step_goes_in_piece_by_piece(runner: Runner) -> None:
    log: list[Event] = []
    opening = [t % N_VOCAB for t in range(150)]
    run(runner, constrained(log, [1, 2], 1, opening=opening, max_tokens=200))
    assert tokens_of(log) == [*opening, 1, *FORCED]


@pytest.mark.parametrize("status", [1, 2, -3], ids=["no room", "aborted", "failed"])
@pytest.mark.parametrize("at_step", [1, 2, 3, 4])
def test_a_step_that_does_not_succeed_loses_and_repeats_no_token(
    runner: Runner, context: ScriptedContext, status: int, at_step: int
) -> None:
    context.statuses = {at_step: status}
    logs: list[list[Event]] = [[], [], []]
    plain = make_sequence(logs[2], [7, 8, 9], max_tokens=6)
    run(
        runner, constrained(logs[0], [1, 2], 3, opening=[9]), constrained(logs[1], [3, 4], 2), plain
    )
    assert tokens_of(logs[0]) == [9, 1, *FORCED, 2, *FORCED, 3, *FORCED]
    assert tokens_of(logs[1]) == [1, *FORCED, 2, *FORCED]
    assert tokens_of(logs[2]) == [1, 2, 3, 4, 5, 6]


class PanicException(BaseException):
    """As a panic in Rust arrives: not an Exception."""


@pytest.mark.parametrize("error", [GenerationFailed("x"), RuntimeError("x"), PanicException("x")])
def test_a_failing_matcher_fails_only_its_own_sequence(
    runner: Runner, error: BaseException
) -> None:
    logs: list[list[Event]] = [[], [], []]
    bad = constrained(logs[0], [1, 2], 5, matcher=ScriptedMatcher(5, {2: error}))
    run(runner, bad, constrained(logs[1], [3, 4], 3), make_sequence(logs[2], [5, 6]))
    assert isinstance(logs[0][-1], Failed)
    assert isinstance(logs[0][-1].error, GenerationFailed)
    for log in logs[1:]:
        assert isinstance(log[-1], Ended)
    runner.check()


def test_masks_that_fail_together_are_computed_alone(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailingMasks(ScriptedMasks):
        def fill(self, _rows: object) -> None:
            raise PanicException("x")

    monkeypatch.setitem(runner._executor.__dict__, "_masks", FailingMasks())
    log: list[Event] = []
    run(runner, constrained(log, [1, 2], 2))
    assert tokens_of(log) == [1, *FORCED, 2, *FORCED]
