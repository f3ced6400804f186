"""Queues before the speech models: order, limits, errors and cancelling."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from ferrum_local.engine import jobs
from ferrum_local.engine.jobs import FairTurns, Job, JobQueue, Place
from ferrum_local.errors import (
    Cancelled,
    FerrumError,
    GenerationFailed,
    InvalidAudio,
    QueueFull,
    Unavailable,
)
from ferrum_local.types import Priority
from tests.fakes import wait_until


def job(name: str = "a") -> Job[int]:
    return Job(name, frozenset({name}))


def ignore(_error: FerrumError | None) -> None:
    pass


@pytest.fixture
def one_worker() -> Iterator[JobQueue]:
    queue = JobQueue("model", n_workers=1, max_queue=1)
    yield queue
    queue.close()


def test_results_come_in_order_then_the_end(one_worker: JobQueue) -> None:
    ends: list[FerrumError | None] = []
    a = job()
    one_worker.submit(a, lambda: iter(range(5)), ends.append)
    assert list(a) == [0, 1, 2, 3, 4]
    assert ends == [None]
    with pytest.raises(StopIteration):
        a.poll(0)


def test_stt_09_the_worker_is_busy_until_the_last_result(one_worker: JobQueue) -> None:
    """Segments are decoded lazily: a second job may not begin before the first is through."""
    go_on, begun = threading.Event(), threading.Event()

    def lazily() -> Iterator[int]:
        yield 1
        go_on.wait(10)
        yield 2

    def second() -> Iterator[int]:
        begun.set()
        return iter([3])

    a, b = job("a"), job("b")
    one_worker.submit(a, lazily, ignore)
    one_worker.submit(b, second, ignore)
    assert a.poll(5) == 1
    assert (one_worker.n_running, one_worker.n_waiting) == (1, 1)
    assert not begun.is_set()
    go_on.set()
    assert (list(a), list(b)) == ([2], [3])


def test_more_than_the_queue_takes_is_refused(one_worker: JobQueue) -> None:
    release = threading.Event()

    def work() -> Iterator[int]:
        release.wait(10)
        return iter(())

    jobs = [job(name) for name in "ab"]
    for each in jobs:
        one_worker.submit(each, work, ignore)
    with pytest.raises(QueueFull) as caught:
        one_worker.submit(job("c"), work, ignore)
    assert caught.value.retry_after_s >= 1
    release.set()
    assert [list(each) for each in jobs] == [[], []]
    wait_until(lambda: one_worker.n_running == 0)
    one_worker.submit(job("d"), work, ignore)


def test_an_error_is_raised_where_results_are_read(one_worker: JobQueue) -> None:
    ends: list[FerrumError | None] = []

    def fail() -> Iterator[int]:
        yield 1
        raise InvalidAudio("file: broken")

    a = job()
    one_worker.submit(a, fail, ends.append)
    assert a.poll(5) == 1
    for _ in range(2):
        with pytest.raises(InvalidAudio):
            while a.poll(5) is None:
                pass
    assert isinstance(ends[0], InvalidAudio)


def test_a_bug_counts_as_a_failure(one_worker: JobQueue) -> None:
    ends: list[FerrumError | None] = []

    def bug() -> Iterator[int]:
        raise ZeroDivisionError

    a = job()
    one_worker.submit(a, bug, ends.append)
    with pytest.raises(ZeroDivisionError):
        list(a)
    assert isinstance(ends[0], GenerationFailed)


def test_leaving_cancels_also_while_waiting(one_worker: JobQueue) -> None:
    ends: list[FerrumError | None] = []
    a, b = job("a"), job("b")

    def until_cancelled() -> Iterator[int]:
        yield 1
        wait_until(a.is_cancelled)

    one_worker.submit(a, until_cancelled, ends.append)
    one_worker.submit(b, lambda: iter([1]), ends.append)
    b.close()
    with a:
        assert a.poll(5) == 1
    for each in (a, b):
        with pytest.raises(Cancelled):
            list(each)
    assert [type(end) for end in ends] == [Cancelled, Cancelled]


def test_who_is_cancelled_while_waiting_leaves_the_queue_at_once(one_worker: JobQueue) -> None:
    ends: list[FerrumError | None] = []
    release = threading.Event()

    def until_released() -> Iterator[int]:
        release.wait(10)
        return iter([1])

    a, b, c = job("a"), job("b"), job("c")
    one_worker.submit(a, until_released, ignore)
    wait_until(lambda: one_worker.n_running == 1)
    one_worker.submit(b, lambda: iter([2]), ends.append)
    b.cancel()
    assert [type(end) for end in ends] == [Cancelled]
    assert one_worker.n_waiting == 0
    with pytest.raises(Cancelled):
        b.poll(0)
    one_worker.submit(c, lambda: iter([3]), ignore)  # there is room again
    b.cancel()
    release.set()
    assert (list(a), list(c)) == ([1], [3])
    assert len(ends) == 1


def test_who_was_cancelled_before_it_was_queued_does_not_wait(one_worker: JobQueue) -> None:
    """It has a name, and so can be cancelled, before there is a place for it."""
    ends: list[FerrumError | None] = []
    release = threading.Event()

    def until_released() -> Iterator[int]:
        release.wait(10)
        return iter([1])

    a, b = job("a"), job("b")
    one_worker.submit(a, until_released, ignore)
    wait_until(lambda: one_worker.n_running == 1)
    b.cancel()
    one_worker.submit(b, lambda: iter([2]), ends.append)
    assert ([type(end) for end in ends], one_worker.n_waiting) == ([Cancelled], 0)
    release.set()


def test_each_job_ends_once_whenever_it_is_cancelled() -> None:
    """Also when a worker takes it in that moment."""
    queue = JobQueue("model", n_workers=2, max_queue=1000)
    ends: list[str] = []

    def note(name: str) -> Callable[[FerrumError | None], None]:
        return lambda _error: ends.append(name)

    all_jobs = [job(str(i)) for i in range(500)]
    for each in all_jobs:
        queue.submit(each, lambda: iter([1]), note(each.request_id))
        each.cancel()
    for each in all_jobs:
        with contextlib.suppress(Cancelled):
            list(each)
    assert sorted(ends) == sorted(each.request_id for each in all_jobs)
    wait_until(lambda: (queue.n_running, queue.n_waiting) == (0, 0))
    queue.close()


def test_a_closed_queue_takes_no_more_and_keeps_no_place(one_worker: JobQueue) -> None:
    one_worker.close()
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            one_worker.submit(job(), lambda: iter([1]), ignore)
        assert caught.value.code == "draining"
    assert one_worker.n_waiting == 0


def test_a_job_for_which_no_thread_can_be_started_keeps_no_place(
    one_worker: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", fail)
        for _ in range(3):
            with pytest.raises(Unavailable):
                one_worker.submit(job(), lambda: iter([1]), ignore)
    assert one_worker.n_waiting == 0
    a = job("a")
    one_worker.submit(a, lambda: iter([1]), ignore)
    assert list(a) == [1]


def test_turns_are_taken_in_order_and_given_back() -> None:
    turns = FairTurns("voice", n=1, max_waiting=9)
    order: list[int] = []
    threads = []

    def take(i: int) -> None:
        with turns.take(lambda: False):
            order.append(i)

    with turns.take(lambda: False):
        for i in range(3):
            threads.append(threading.Thread(target=take, args=(i,)))
            threads[-1].start()
            wait_until(lambda n=i: turns.n_waiting == n + 1)  # type: ignore[misc]
        assert (order, turns.n_running) == ([], 1)
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2]
    assert (turns.n_running, turns.n_waiting) == (0, 0)


def test_realtime_goes_first_but_not_before_those_who_waited_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = FairTurns("voice", n=1, max_waiting=9)
    order: list[str] = []

    def take(name: str, priority: Priority) -> None:
        with turns.take(lambda: False, priority):
            order.append(name)

    def ask(*names: str) -> list[threading.Thread]:
        threads = []
        for name in names:
            priority = Priority[name.split()[0]]
            threads.append(threading.Thread(target=take, args=(name, priority)))
            n_waiting = turns.n_waiting
            threads[-1].start()
            wait_until(lambda n=n_waiting: turns.n_waiting == n + 1)  # type: ignore[misc]
        return threads

    names = ("BACKGROUND", "INTERACTIVE 1", "REALTIME 1", "INTERACTIVE 2", "REALTIME 2")
    with turns.take(lambda: False):
        threads = ask(*names)
    for thread in threads:
        thread.join(10)
    assert order == ["REALTIME 1", "REALTIME 2", "INTERACTIVE 1", "INTERACTIVE 2", "BACKGROUND"]

    order.clear()
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)
    with turns.take(lambda: False):
        threads = ask(*names)
    for thread in threads:
        thread.join(10)
    assert order == list(names)


def test_one_who_was_cancelled_waits_no_longer() -> None:
    turns = FairTurns("voice", n=1, max_waiting=1)
    with turns.take(lambda: False):
        with pytest.raises(Cancelled), turns.take(lambda: True):
            pass
        turns.enter()
    assert turns.n_waiting == 0


@pytest.mark.parametrize("max_waiting", [0, 1, 3])
def test_turns_refuse_a_crowd(max_waiting: int) -> None:
    """Exactly so many may wait as were said, beside those that hold a turn."""
    turns = FairTurns("voice", n=2, max_waiting=max_waiting)
    places = [turns.enter() for _ in range(2 + max_waiting)]
    with pytest.raises(QueueFull):
        turns.enter()
    turns.leave(places.pop())
    turns.leave(Place())  # one that was given up before means nothing
    places.append(turns.enter())
    with pytest.raises(QueueFull):
        turns.enter()


def test_a_place_is_kept_until_the_first_turn_and_no_longer() -> None:
    turns = FairTurns("voice", n=1, max_waiting=0)
    place = turns.enter()
    with turns.take(lambda: False, place=place), pytest.raises(QueueFull):
        turns.enter()
    other = turns.enter()  # between its turns nobody waits
    with turns.take(lambda: False, place=place), pytest.raises(QueueFull):
        turns.enter()
    turns.leave(other)
    turns.enter()


def test_of_many_who_come_at_once_no_more_enter_than_may_wait() -> None:
    turns = FairTurns("voice", n=1, max_waiting=4)
    together = threading.Barrier(20)
    entered: list[Place] = []

    def enter() -> None:
        together.wait(10)
        with contextlib.suppress(QueueFull):
            entered.append(turns.enter())

    threads = [threading.Thread(target=enter) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(entered) == 5
