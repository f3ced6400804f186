"""Queues before the speech models: workers for whole recordings, turns for single clauses."""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

from ferrum_local.errors import (
    Cancelled,
    FerrumError,
    GenerationFailed,
    QueueFull,
    Unavailable,
)
from ferrum_local.types import Priority

T = TypeVar("T")

_LOOK_S = 0.05  # how often one who waits for a turn looks whether it was cancelled
_MIN_RETRY_S = 1.0
_CLOSED_RETRY_S = 5.0
PATIENCE_S = 10.0


class Running(Protocol):
    """What the engine keeps of a request that runs, to cancel it and to wait for its end."""

    @property
    def request_id(self) -> str: ...

    @property
    def names(self) -> Set[str]:
        """What it may be cancelled by."""
        ...

    def cancel(self) -> None: ...


class _End:
    """The last thing in a job's queue; ``error`` None: all went well."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Job(Generic[T]):
    """Results of work on another thread, as they come. Leaving the block cancels the rest."""

    def __init__(self, request_id: str, names: frozenset[str]) -> None:
        self.request_id = request_id
        self.names = names
        self._results: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._withdraw: Callable[[], None] = lambda: None  # from the queue, if it waits there
        self._end: _End | None = None

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Results end with ``Cancelled`` soon; at once, if no worker has begun with them.

        May be called from any thread, also twice.
        """
        self._cancelled.set()
        self._withdraw()

    def poll(self, timeout_s: float) -> T | None:
        """The next result, or None when there was none within ``timeout_s``.

        :raises StopIteration: after the last one.
        :raises FerrumError: the work failed or was cancelled.
        """
        if self._end is None:
            try:
                result = self._results.get(timeout=timeout_s)
            except queue.Empty:
                return None
            if not isinstance(result, _End):
                return result
            self._end = result
        if self._end.error is not None:
            raise self._end.error
        raise StopIteration

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                result = self.poll(1.0)
            except StopIteration:
                return
            if result is not None:
                yield result

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> Job[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Waiting(NamedTuple):
    """A job that no worker has taken yet; one of the two is called."""

    run: Callable[[], None]
    drop: Callable[[], None]


class JobQueue:
    """``n_workers`` threads, each for one job at a time, and a bounded queue before them."""

    def __init__(self, name: str, *, n_workers: int, max_queue: int) -> None:
        self._name = name
        self._n_workers = n_workers
        self._max_queue = max_queue
        self._lock = threading.Lock()
        self._n_running = 0
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}  # in the order in which they came
        self._closed = False
        self._job_s = _MIN_RETRY_S  # how long the last one took
        self._threads = ThreadPoolExecutor(n_workers, thread_name_prefix=name)

    @property
    def n_running(self) -> int:
        return self._n_running

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def submit(
        self,
        job: Job[T],
        work: Callable[[], Iterator[T]],
        on_done: Callable[[FerrumError | None], None],
    ) -> None:
        """Run ``work`` when a worker is free; its results go to ``job``.

        :param on_done: called once, before the job's end can be read: on the worker's thread, or
            on the one that cancels the job before a worker has it.
        :raises QueueFull: too many wait already. Unavailable: the queue is closed.
        """
        cancelled = Cancelled("The request was cancelled.")
        with self._lock:
            n_open = self._n_running + len(self._waiting)
            if n_open >= self._n_workers + self._max_queue:
                raise QueueFull(
                    f"{n_open} requests run or wait for {self._name} already.",
                    retry_after_s=max(_MIN_RETRY_S, self._job_s),
                )
            number = next(self._numbers)
            self._waiting[number] = _Waiting(
                run=functools.partial(self._run, job, work, on_done),
                drop=functools.partial(_finish, job, on_done, cancelled),
            )
        job._withdraw = functools.partial(self._withdraw, number)
        try:
            self._threads.submit(self._run_next)
        except RuntimeError as error:  # closed, or there can be no more threads
            if self._taken(number) is not None:
                raise Unavailable(
                    f"{self._name} takes no requests now.",
                    retry_after_s=_CLOSED_RETRY_S,
                    code="draining" if self._closed else None,
                ) from error
        if job.is_cancelled():  # perhaps before there was anything to withdraw
            job._withdraw()

    def close(self) -> None:
        """Take no more; returns at once, what runs ends when it is cancelled."""
        self._closed = True
        self._threads.shutdown(wait=False)

    def _taken(self, number: int) -> _Waiting | None:
        """The job of that number, if nobody else has taken it from those who wait."""
        with self._lock:
            return self._waiting.pop(number, None)

    def _withdraw(self, number: int) -> None:
        if (waiting := self._taken(number)) is not None:
            waiting.drop()

    def _run_next(self) -> None:
        """Called once for each that came; for those that were withdrawn there is nothing to do."""
        with self._lock:
            if not self._waiting:
                return
            waiting = self._waiting.pop(next(iter(self._waiting)))
            self._n_running += 1
        waiting.run()

    def _run(
        self,
        job: Job[T],
        work: Callable[[], Iterator[T]],
        on_done: Callable[[FerrumError | None], None],
    ) -> None:
        started_s = time.monotonic()
        error: Exception | None = None
        try:
            if not job.is_cancelled():
                for result in work():
                    job._results.put(result)
        except Exception as exc:  # the caller's thread raises it
            error = exc
        if job.is_cancelled():
            error = Cancelled("The request was cancelled.")
        with self._lock:
            self._n_running -= 1
            self._job_s = time.monotonic() - started_s
        _finish(job, on_done, error)


def _finish(
    job: Job[T], on_done: Callable[[FerrumError | None], None], error: Exception | None
) -> None:
    on_done(as_ferrum_error(error))
    job._results.put(_End(error))


class _Ticket(NamedTuple):
    """Of one who waits; the smallest is next."""

    rank: int
    number: int


class Place:
    """Of one that was let in and has not yet asked for its first turn."""


class FairTurns:
    """At most ``n`` hold a turn at once; the others get theirs by priority, then as they came.

    Whoever has waited for ``PATIENCE_S`` goes before all who came later.

    :param max_waiting: that may wait beside the ``n`` when one more wants to ``enter``; it is
        refused otherwise. Who is in may ask for turns as often as it likes. None: no limit.
    """

    def __init__(self, name: str, *, n: int, max_waiting: int | None = None) -> None:
        self._name = name
        self._n = self._free = n
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: dict[_Ticket, float] = {}  # the moment until which it is patient
        self._n_tickets = 0
        self._places: set[Place] = set()
        self.n_running = 0

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def enter(self) -> Place:
        """A place for the first turn: to be given to ``take``, or up with ``leave``.

        :raises QueueFull: too many run and wait already.
        """
        with self._changed:
            n_open = self.n_running + len(self._waiting) + len(self._places)
            if self._max_waiting is not None and n_open >= self._n + self._max_waiting:
                raise QueueFull(
                    f"{n_open} requests run or wait for {self._name} already.",
                    retry_after_s=_MIN_RETRY_S,
                )
            place = Place()
            self._places.add(place)
            return place

    def leave(self, place: Place) -> None:
        """Give a place up. Safe to call twice, and after its turn."""
        with self._changed:
            self._places.discard(place)

    @contextmanager
    def take(
        self,
        is_cancelled: Callable[[], bool],
        priority: Priority = Priority.INTERACTIVE,
        *,
        place: Place | None = None,
    ) -> Iterator[None]:
        """:raises Cancelled: while waiting."""
        with self._changed:
            if place is not None:  # from now on it counts as one that waits or runs
                self._places.discard(place)
            self._n_tickets += 1
            ticket = _Ticket(-priority, self._n_tickets)
            self._waiting[ticket] = time.monotonic() + PATIENCE_S
            try:
                while self._free == 0 or self._next() != ticket:
                    if is_cancelled():
                        raise Cancelled("The request was cancelled.")
                    self._changed.wait(_LOOK_S)
            finally:
                del self._waiting[ticket]
                self._changed.notify_all()
            self._free -= 1
            self.n_running += 1
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self.n_running -= 1
                self._changed.notify_all()

    def _next(self) -> _Ticket:
        oldest = next(iter(self._waiting))
        return oldest if self._waiting[oldest] <= time.monotonic() else min(self._waiting)


def as_ferrum_error(error: Exception | None) -> FerrumError | None:
    if error is None or isinstance(error, FerrumError):
        return error
    return GenerationFailed(f"{type(error).__name__}: {error}")
