"""The threads of one embedding model: take what waits, run steps, hand out the vectors.

Each lane is a thread with a context of its own over the same weights. Steps side by side, each
on its share of the cores, need no barrier between threads and are a tenth to a fifth faster than
one after the other on all cores. What fits one step, or is too long for a lane, has all cores
to itself.

A thread ends when nothing has come for a moment. OpenMP's helpers belong to the thread that
began them, and while there are more of them than cores, those of a chat model wait at every
barrier by sleeping instead of spinning: an idle embedding model would slow down generation.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ferrum_local.errors import Cancelled, FerrumError, GenerationFailed, QueueFull, Unavailable
from ferrum_local.llm.context import DecodeError
from ferrum_local.llm.embedding_queue import EmbeddingJob, EmbeddingQueue, Item
from ferrum_local.vectors import EmbeddingCounters

logger = logging.getLogger(__name__)

IDLE_S = 0.2  # after which a thread ends; a new one starts in less than a millisecond
_MIN_SHARE = 64  # tokens; smaller steps use a core less well
_LULL_S = 0.005  # when nothing has come for so long, a lane takes what little there is
_MIN_BESIDE = 32  # tokens; for fewer, a lane beside a busy one waits for more


class StepContext(Protocol):
    """What the worker needs of an ``EmbeddingContext``."""

    def embed(
        self, sequences: Sequence[list[int]], *, n_threads: int
    ) -> npt.NDArray[np.float32]: ...

    def abort(self) -> None: ...

    def rebuild(self) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass(eq=False)
class _Lane:
    context: StepContext
    thread: threading.Thread | None = None
    items: list[Item] = dataclasses.field(default_factory=list)  # in the step that runs
    is_alone: bool = False  # the step has all cores


class _Plan(NamedTuple):
    """Of a lane's next step."""

    n_tokens: int
    is_alone: bool


class EmbeddingWorker:
    """Runs jobs on contexts, from its first job until ``stop``.

    :param contexts: one for each lane. The first takes a text of any length, the others
        steps of ``n_tokens``.
    :param n_tokens: of a step; a longer text has a step of its own.
    :param n_threads: for all lanes together.
    :param max_queue: requests that may wait; one more is refused.
    """

    def __init__(
        self,
        contexts: Sequence[StepContext],
        *,
        n_tokens: int,
        n_sequences: int,
        n_threads: int,
        max_queue: int,
        name: str = "embedding",
    ) -> None:
        self._lanes = [_Lane(context) for context in contexts]
        self._n_tokens = n_tokens
        self._n_sequences = n_sequences
        self._n_threads = n_threads
        self._max_queue = max_queue
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue = EmbeddingQueue()
        self._stop_error: FerrumError | None = None
        self._last_came_s = 0.0
        self._step_s = 0.1  # smoothed, for Retry-After
        self.counters = EmbeddingCounters()

    # -- any thread --------------------------------------------------------------------------

    @property
    def n_queued(self) -> int:
        """Requests of which nothing has been in a step."""
        with self._lock:
            return self._queue.n_waiting

    @property
    def n_running(self) -> int:
        """Texts in the steps that run."""
        return sum(len(lane.items) for lane in self._lanes)

    @property
    def is_awake(self) -> bool:
        """Whether any thread, and with it a team of OpenMP threads, is there."""
        return any(lane.thread is not None for lane in self._lanes)

    def submit(self, job: EmbeddingJob) -> None:
        """Queue a job; it must have inputs, and none longer than the context.

        :raises QueueFull: when ``max_queue`` requests wait already.
        :raises Unavailable: when the worker was stopped.
        """
        with self._lock:
            if self._stop_error is not None:
                raise self._stop_error
            n_waiting = self._queue.n_waiting
            if n_waiting >= max(1, self._max_queue):
                raise QueueFull(
                    f"{n_waiting} requests for embeddings are waiting already (--max-queue "
                    f"{self._max_queue}); try again later",
                    retry_after_s=n_waiting * self._step_s / len(self._lanes),
                )
            is_first = not len(self._queue)
            self._queue.add(job)
            self._last_came_s = time.monotonic()
            new = self._wake_lanes()
            if is_first:  # lanes that are there wait for a lull from now on
                self._changed.notify_all()
        self._start(new)

    def cancel(self, job: EmbeddingJob, error: FerrumError | None = None) -> None:
        """End a job with ``error`` (default: ``Cancelled``); twice, or too late, is fine."""
        with self._lock:
            if job.done.is_set():
                return
            self._queue.discard(job)
            job.fail(error or Cancelled("The request was cancelled."))
            self.counters.cancelled += 1
            for lane in self._lanes:
                if lane.items and all(item.job.done.is_set() for item in lane.items):
                    lane.context.abort()

    def stop(self, error: FerrumError | None = None) -> None:
        """Fail everything with ``error``, wait for the threads, free the contexts."""
        reason = error or Unavailable("The server is shutting down.", retry_after_s=5)
        with self._lock:
            if self._stop_error is not None:
                return
            self._stop_error = reason
            in_steps = [item.job for lane in self._lanes for item in lane.items]
            for job in [*self._queue.take_all(), *in_steps]:
                job.fail(reason)
            for lane in self._lanes:
                lane.context.abort()
            self._changed.notify_all()
            threads = [lane.thread for lane in self._lanes if lane.thread is not None]
        for thread in threads:
            if thread.ident is not None:  # one that has yet to start will find nothing to do
                thread.join()
        for lane in self._lanes:
            lane.context.close()

    # -- which lane does what; with the lock held ------------------------------------------------

    def _is_quiet(self, now_s: float) -> bool:
        """Whether nothing has come for a while, so that little is to be gained by waiting."""
        return now_s - self._last_came_s > _LULL_S

    def _plan(self, lane: _Lane, now_s: float) -> _Plan | None:
        """The lane's next step; None: there is nothing for it now."""
        if self._stop_error is not None or not len(self._queue):
            return None
        others = [other for other in self._lanes if other is not lane and other.items]
        if any(other.is_alone for other in others):
            return None
        is_long = self._queue.n_first_tokens > self._n_tokens
        fits = len(self._queue) == 1 and self._queue.n_tokens <= self._n_tokens
        # Threads that wait for each other do badly where others want the cores: six times as
        # long for one short text among requests that are being read.
        is_quiet = self._is_quiet(now_s)
        takes_all = fits and not others and (is_quiet or not self._queue.is_crowded)
        if is_long or len(self._lanes) == 1 or takes_all:
            can_start = lane is self._lanes[0] and not others
            return _Plan(self._n_tokens, is_alone=True) if can_start else None
        if others and self._queue.n_tokens < _MIN_BESIDE and not is_quiet:
            return None  # more will have come when a step ends
        share = -(-self._queue.n_tokens // len(self._lanes))  # so that they end together
        least = _MIN_BESIDE if is_quiet else _MIN_SHARE
        return _Plan(min(max(share, least), self._n_tokens), is_alone=False)

    def _wake_lanes(self) -> list[threading.Thread]:
        """Wake the lanes for which there is a step now, and make those that have no thread.

        :returns: threads for ``_start``, once the lock is free.
        """
        new = []
        now_s = time.monotonic()
        for i, lane in enumerate(self._lanes):
            if lane.items or self._plan(lane, now_s) is None:
                continue
            if lane.thread is None:
                lane.thread = threading.Thread(
                    target=self._run, args=(lane,), name=f"embed-{self._name}-{i}", daemon=True
                )
                new.append(lane.thread)
            else:
                self._changed.notify_all()
        return new

    def _start(self, threads: Sequence[threading.Thread]) -> None:
        """Without the lock: starting waits until the thread has run, and it may have to wait
        long for its turn where many do."""
        for thread in threads:
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads
                logger.error("an embedding thread could not be started: %s", error)
                self._do_without(thread)

    def _do_without(self, thread: threading.Thread) -> None:
        """The other lanes do its work; if there are none, what waits ends."""
        with self._lock:
            for lane in self._lanes:
                if lane.thread is thread:
                    lane.thread = None
            if not self.is_awake:
                for job in self._queue.take_all():
                    job.fail(Unavailable("The system has no thread left.", retry_after_s=5))

    # -- a lane's thread ---------------------------------------------------------------------

    def _run(self, lane: _Lane) -> None:
        while items := self._next_step(lane):
            try:
                self._step(lane, items)
            except Exception as error:  # the next request must find a worker
                logger.exception("embedding failed; the requests of this step end with an error")
                self._fail(items, _as_ours(error))
            finally:
                with self._lock:
                    lane.items = []
                    new = self._wake_lanes()
                self._start(new)

    def _next_step(self, lane: _Lane) -> list[Item]:
        """Wait for work; empty when it is time to go."""
        with self._lock:
            while True:
                now_s = time.monotonic()
                plan = self._plan(lane, now_s)
                if plan is not None:
                    lane.is_alone = plan.is_alone
                    lane.items = self._queue.take_step(
                        n_tokens=plan.n_tokens, n_sequences=self._n_sequences
                    )
                    new = self._wake_lanes()  # to share what is left
                    break
                waits_for_more = len(self._queue) > 0 and not self._is_quiet(now_s)
                patience_s = _LULL_S if waits_for_more else IDLE_S
                if self._stop_error is not None or (
                    not self._changed.wait(patience_s) and not waits_for_more
                ):
                    if self._plan(lane, time.monotonic()) is not None:  # it came at the last moment
                        continue
                    lane.thread = None
                    return []
        self._start(new)
        return lane.items

    def _step(self, lane: _Lane, items: list[Item]) -> None:
        try:
            suspects = self._embed(lane, items)
        except DecodeError as error:
            if all(item.job.done.is_set() for item in items):  # aborted, and nobody waits
                return
            logger.error("%s; the context for embeddings is rebuilt", error)
            lane.context.rebuild()
            suspects = items
        # One bad text must fail only its own request: each has a step alone.
        for item in suspects:
            if not item.job.done.is_set():
                self._embed_alone(lane, item)

    def _embed_alone(self, lane: _Lane, item: Item) -> None:
        try:
            failed = self._embed(lane, [item])
        except DecodeError as error:
            self._fail([item], GenerationFailed(f"{item.name} cannot be embedded ({error})."))
            lane.context.rebuild()
            return
        if failed:
            self._fail(
                [item],
                GenerationFailed(
                    f"{item.name}: what the model makes of it has numbers that are not finite; "
                    "the model file may be damaged."
                ),
            )

    def _embed(self, lane: _Lane, items: list[Item]) -> list[Item]:
        """Run a step and hand out its vectors.

        :returns: items whose vectors are not finite. What attention leaves out it multiplies
            by 0, so NaN in one text spoils the others of its step.
        """
        n_threads = self._n_threads if lane.is_alone else self._n_threads_of(lane)
        began_s = time.perf_counter()
        rows = lane.context.embed([item.tokens for item in items], n_threads=n_threads)
        step_s = time.perf_counter() - began_s
        bad = set(np.flatnonzero(~np.isfinite(rows).all(axis=1)).tolist())
        with self._lock:  # lanes may have texts of the same request
            self._step_s += 0.2 * (step_s - self._step_s)
            self.counters.steps += 1
            self.counters.inputs += len(items)
            self.counters.tokens += sum(len(item.tokens) for item in items)
            for i, item in enumerate(items):
                if i not in bad:
                    item.job.put(item.place, rows[i])
        return [items[i] for i in sorted(bad)]

    def _n_threads_of(self, lane: _Lane) -> int:
        """Its share of all threads; the first lanes have what is left over."""
        share, n_over = divmod(self._n_threads, len(self._lanes))
        return max(1, share + (self._lanes.index(lane) < n_over))

    def _fail(self, items: list[Item], error: FerrumError) -> None:
        with self._lock:
            for item in items:
                self._queue.discard(item.job)
                item.job.fail(error)


def _as_ours(error: Exception) -> FerrumError:
    if isinstance(error, FerrumError):
        return error
    return GenerationFailed("An internal error ended this request.")
