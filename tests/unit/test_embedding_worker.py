"""The embedding thread: faults stay with their request, queues are bounded, idleness ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from ferrum_local.errors import (
    Cancelled,
    GenerationFailed,
    ModelLoadError,
    QueueFull,
    Unavailable,
)
from ferrum_local.llm.context import DecodeError
from ferrum_local.llm.embedding_queue import EmbeddingJob
from ferrum_local.llm.embedding_worker import IDLE_S, EmbeddingWorker
from tests.fakes import wait_until

BAD, NAN, BUG = -1, -2, -3  # tokens that make a step fail
TIMEOUT_S = 20.0


class ScriptedContext:
    """Gives each text its first token as vector; waits in each step while ``gate`` is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.aborted = threading.Event()
        self.steps: list[list[list[int]]] = []
        self.n_threads: list[int] = []
        self.n_rebuilt = 0
        self.closed = False
        self.rebuild_fails = False

    def embed(self, sequences: Sequence[list[int]], *, n_threads: int) -> npt.NDArray[np.float32]:
        assert not self.closed
        self.n_threads.append(n_threads)
        self.steps.append([list(s) for s in sequences])
        self.aborted.clear()
        self.in_step.set()
        wait_until(lambda: self.gate.is_set() or self.aborted.is_set(), TIMEOUT_S)
        if self.aborted.is_set():
            raise DecodeError(2)
        first = [s[0] for s in sequences]
        if BAD in first:
            raise DecodeError(-3)
        if BUG in first:
            raise RuntimeError("a bug")
        rows = np.array([[t, t] for t in first], dtype=np.float32)
        if NAN in first:  # spoils its whole step, as in llama.cpp
            rows[:] = np.nan
        return rows

    def abort(self) -> None:
        self.aborted.set()

    def rebuild(self) -> None:
        self.n_rebuilt += 1
        if self.rebuild_fails:
            raise ModelLoadError("no memory for a context")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def context() -> ScriptedContext:
    return ScriptedContext()


@pytest.fixture
def worker(context: ScriptedContext) -> Iterator[EmbeddingWorker]:
    made = EmbeddingWorker([context], n_tokens=64, n_sequences=16, n_threads=2, max_queue=4)
    yield made
    made.stop()
    assert context.closed


Submit = Callable[..., EmbeddingJob]


@pytest.fixture
def submit(worker: EmbeddingWorker) -> Submit:
    def run(*first_tokens: int) -> EmbeddingJob:
        job = EmbeddingJob("r", [[t] for t in first_tokens])
        worker.submit(job)
        return job

    return run


def ended(job: EmbeddingJob) -> EmbeddingJob:
    assert job.done.wait(TIMEOUT_S)
    return job


def together(context: ScriptedContext, submit: Submit, *texts: int) -> list[EmbeddingJob]:
    """Requests that find a step running, so that they share the next one."""
    context.gate.clear()
    context.in_step.clear()
    first = submit(1)
    assert context.in_step.wait(TIMEOUT_S)
    jobs = [submit(t) for t in texts]
    context.gate.set()
    ended(first)
    return [ended(job) for job in jobs]


def values(job: EmbeddingJob) -> list[float]:
    assert job.error is None
    return [float(row[0]) for row in job.rows if row is not None]


def test_vectors_come_back_in_order(submit: Submit) -> None:
    assert values(ended(submit(3, 1, 2))) == [3, 1, 2]


def test_requests_that_wait_share_the_next_step(context: ScriptedContext, submit: Submit) -> None:
    jobs = together(context, submit, 5, 6, 7)
    assert [values(job) for job in jobs] == [[5], [6], [7]]
    assert context.steps[1:] == [[[5], [6], [7]]]


@pytest.mark.parametrize("fault", [BAD, NAN])
def test_a_bad_text_fails_only_its_own_request(
    context: ScriptedContext, submit: Submit, fault: int
) -> None:
    good, bad, other = together(context, submit, 5, fault, 7)
    assert (values(good), values(other)) == ([5], [7])
    assert isinstance(bad.error, GenerationFailed)
    assert "input[0]" in bad.error.message


def test_a_bug_fails_the_step_and_the_next_request_is_served(
    context: ScriptedContext, submit: Submit
) -> None:
    (failed,) = together(context, submit, BUG)
    assert isinstance(failed.error, GenerationFailed)
    assert "a bug" not in failed.error.message
    assert values(ended(submit(8))) == [8]


def test_a_context_that_cannot_be_made_again_fails_with_its_reason(
    context: ScriptedContext, submit: Submit
) -> None:
    context.rebuild_fails = True
    (failed,) = together(context, submit, BAD)
    assert isinstance(failed.error, ModelLoadError)
    assert values(ended(submit(8))) == [8]


def test_a_full_queue_is_refused_with_a_time_to_come_back(
    context: ScriptedContext, submit: Submit
) -> None:
    context.gate.clear()
    first = submit(1)
    assert context.in_step.wait(TIMEOUT_S)
    waiting = [submit(t) for t in (2, 3, 4, 5)]
    with pytest.raises(QueueFull, match="--max-queue 4") as caught:
        submit(6)
    assert caught.value.retry_after_s > 0
    context.gate.set()
    assert [values(ended(job)) for job in (first, *waiting)] == [[1], [2], [3], [4], [5]]


def test_a_cancelled_request_leaves_the_queue(
    context: ScriptedContext, submit: Submit, worker: EmbeddingWorker
) -> None:
    context.gate.clear()
    first = submit(1)
    assert context.in_step.wait(TIMEOUT_S)
    gone = submit(2)
    worker.cancel(gone)
    assert isinstance(ended(gone).error, Cancelled)
    context.gate.set()
    assert values(ended(first)) == [1]
    assert values(ended(submit(3))) == [3]
    assert [2] not in [text for step in context.steps for text in step]
    assert worker.counters.cancelled == 1


def test_a_step_that_nobody_waits_for_is_aborted(
    context: ScriptedContext, submit: Submit, worker: EmbeddingWorker
) -> None:
    context.gate.clear()
    gone = submit(1)
    assert context.in_step.wait(TIMEOUT_S)
    worker.cancel(gone)
    assert isinstance(ended(gone).error, Cancelled)
    wait_until(lambda: worker.n_running == 0)
    context.gate.set()
    assert context.n_rebuilt == 0
    assert values(ended(submit(3))) == [3]


def test_stopping_ends_everything_with_the_reason(
    context: ScriptedContext, submit: Submit, worker: EmbeddingWorker
) -> None:
    context.gate.clear()
    running = submit(1)
    assert context.in_step.wait(TIMEOUT_S)
    waiting = submit(2)
    worker.stop(Unavailable("closing", retry_after_s=1, code="draining"))
    for job in (running, waiting):
        assert isinstance(ended(job).error, Unavailable)
    assert context.closed
    with pytest.raises(Unavailable):
        submit(3)


def test_the_thread_ends_when_idle_and_comes_back(submit: Submit, worker: EmbeddingWorker) -> None:
    assert not worker.is_awake
    ended(submit(1))
    wait_until(lambda: not worker.is_awake)
    assert values(ended(submit(2))) == [2]


class NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_without_a_thread_to_be_had_requests_end_and_the_next_are_served(
    worker: EmbeddingWorker, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", NoThread)
        assert isinstance(ended(submit(1)).error, Unavailable)
    assert values(ended(submit(2))) == [2]


# -- two lanes ---------------------------------------------------------------------------------

STEP = 64


@pytest.fixture
def lanes() -> Iterator[tuple[EmbeddingWorker, ScriptedContext, ScriptedContext]]:
    first, second = ScriptedContext(), ScriptedContext()
    worker = EmbeddingWorker(
        [first, second], n_tokens=STEP, n_sequences=16, n_threads=2, max_queue=8
    )
    yield worker, first, second
    for context in (first, second):
        context.gate.set()
    worker.stop()
    assert first.closed and second.closed


Lanes = tuple[EmbeddingWorker, ScriptedContext, ScriptedContext]


def text(first_token: int, n_tokens: int = STEP) -> list[int]:
    return [first_token] * n_tokens


def test_steps_of_a_large_request_run_side_by_side(lanes: Lanes) -> None:
    worker, first, second = lanes
    for context in (first, second):
        context.gate.clear()
    job = EmbeddingJob("r", [text(t) for t in range(1, 7)])
    worker.submit(job)
    for context in (first, second):
        assert context.in_step.wait(TIMEOUT_S)  # both at the same time
        context.gate.set()
    assert values(ended(job)) == [1, 2, 3, 4, 5, 6]
    assert first.n_threads[0] == second.n_threads[0] == 1


def test_what_fits_one_step_has_all_cores_and_the_first_lane(lanes: Lanes) -> None:
    worker, first, second = lanes
    job = EmbeddingJob("r", [[1], [2]])
    worker.submit(job)
    assert values(ended(job)) == [1, 2]
    assert (first.n_threads, second.n_threads) == ([2], [])


def test_among_other_requests_a_step_takes_one_core_and_the_next_goes_beside_it(
    lanes: Lanes,
) -> None:
    worker, first, second = lanes
    for context in (first, second):
        context.gate.clear()
    jobs = [EmbeddingJob(f"{i}", [text(i, STEP // 2)], is_crowded=True) for i in (1, 2)]
    for job in jobs:
        worker.submit(job)
    for context in (first, second):
        assert context.in_step.wait(TIMEOUT_S)
        context.gate.set()
    assert [values(ended(job)) for job in jobs] == [[1], [2]]
    assert (first.n_threads, second.n_threads) == ([1], [1])


def test_beside_a_running_step_a_few_tokens_wait_for_more_but_not_for_long(lanes: Lanes) -> None:
    worker, first, second = lanes
    first.gate.clear()
    both = EmbeddingJob("both", [text(1, STEP), text(2, STEP)], is_crowded=True)
    worker.submit(both)
    wait_until(lambda: both.n_begun == 2 and worker.n_running == 1, TIMEOUT_S)
    few = [EmbeddingJob(f"{i}", [text(i, 5)], is_crowded=True) for i in (3, 4)]
    for job in few:
        worker.submit(job)
    assert few[0].done.wait(IDLE_S / 2)  # not when the lane looks around anyway
    assert [values(ended(job)) for job in few] == [[3], [4]]
    assert second.steps[-1] == [text(3, 5), text(4, 5)]
    assert second.n_threads == [1, 1]
    first.gate.set()
    assert values(ended(both)) == [1, 2]


def test_a_text_too_long_for_a_lane_waits_for_the_first_and_runs_alone(lanes: Lanes) -> None:
    worker, first, second = lanes
    for context in (first, second):
        context.gate.clear()
    short = EmbeddingJob("short", [text(1), text(2)])
    worker.submit(short)
    for context in (first, second):
        assert context.in_step.wait(TIMEOUT_S)
    long, later = EmbeddingJob("long", [text(3, STEP + 1)]), EmbeddingJob("later", [text(4)])
    worker.submit(long)
    worker.submit(later)
    for context in (second, first):
        context.gate.set()
    assert [values(ended(job)) for job in (short, long, later)] == [[1, 2], [3], [4]]
    assert [text(3, STEP + 1)] in first.steps
    assert first.n_threads[first.steps.index([text(3, STEP + 1)])] == 2


def test_lanes_share_out_all_threads() -> None:
    contexts = [ScriptedContext() for _ in range(3)]
    worker = EmbeddingWorker(contexts, n_tokens=STEP, n_sequences=16, n_threads=5, max_queue=8)
    assert [worker._n_threads_of(lane) for lane in worker._lanes] == [2, 2, 1]
    worker.stop()


def test_a_fault_in_one_lane_leaves_the_other_lane_alone(lanes: Lanes) -> None:
    worker, first, second = lanes
    for context in (first, second):
        context.gate.clear()
    bad, good = EmbeddingJob("bad", [text(BAD)]), EmbeddingJob("good", [text(5), text(6)])
    worker.submit(good)
    worker.submit(bad)
    for context in (first, second):
        assert context.in_step.wait(TIMEOUT_S)
        context.gate.set()
    assert values(ended(good)) == [5, 6]
    assert isinstance(ended(bad).error, GenerationFailed)
    assert first.n_rebuilt + second.n_rebuilt == 2  # the step, and the text alone


def test_a_cancelled_request_ends_its_steps_in_all_lanes(lanes: Lanes) -> None:
    worker, first, second = lanes
    for context in (first, second):
        context.gate.clear()
    gone = EmbeddingJob("r", [text(1), text(2), text(3)])
    worker.submit(gone)
    for context in (first, second):
        assert context.in_step.wait(TIMEOUT_S)
    worker.cancel(gone)
    assert isinstance(ended(gone).error, Cancelled)
    wait_until(lambda: worker.n_running == 0)
