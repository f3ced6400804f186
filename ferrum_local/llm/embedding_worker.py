"""The thread of one embedding model: takes what waits, runs a step, hands out the vectors.

The thread ends when nothing has come for a moment. OpenMP's helpers belong to the thread that
began them, and while there are more of them than cores, those of a chat model wait at every
barrier by sleeping instead of spinning: an idle embedding model would slow down generation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ferrum_local.errors import Cancelled, FerrumError, GenerationFailed, QueueFull, Unavailable
from ferrum_local.llm.context import DecodeError
from ferrum_local.llm.embedding_queue import EmbeddingJob, EmbeddingQueue, Item
from ferrum_local.vectors import EmbeddingCounters

logger = logging.getLogger(__name__)

IDLE_S = 0.2  # after which the thread ends; a new one starts in less than a millisecond


class StepContext(Protocol):
    """What the worker needs of an ``EmbeddingContext``."""

    def embed(self, sequences: Sequence[list[int]]) -> npt.NDArray[np.float32]: ...

    def abort(self) -> None: ...

    def rebuild(self) -> None: ...

    def close(self) -> None: ...


class EmbeddingWorker:
    """Runs jobs on a context, from its first job until ``stop``.

    :param n_tokens: of a step; a longer text has a step of its own.
    :param max_queue: requests that may wait; one more is refused.
    """

    def __init__(
        self,
        context: StepContext,
        *,
        n_tokens: int,
        n_sequences: int,
        max_queue: int,
        name: str = "embedding",
    ) -> None:
        self._context = context
        self._n_tokens = n_tokens
        self._n_sequences = n_sequences
        self._max_queue = max_queue
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue = EmbeddingQueue()
        self._in_step: list[Item] = []
        self._thread: threading.Thread | None = None
        self._stop_error: FerrumError | None = None
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
        """Texts in the step that runs."""
        return len(self._in_step)

    @property
    def is_awake(self) -> bool:
        """Whether the thread, and with it a team of OpenMP threads, is there."""
        return self._thread is not None

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
                    retry_after_s=n_waiting * self._step_s,
                )
            self._queue.add(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"embed-{self._name}", daemon=True
                )
                self._thread.start()
            else:
                self._changed.notify()

    def cancel(self, job: EmbeddingJob, error: FerrumError | None = None) -> None:
        """End a job with ``error`` (default: ``Cancelled``); twice, or too late, is fine."""
        with self._lock:
            if job.done.is_set():
                return
            self._queue.discard(job)
            job.fail(error or Cancelled("The request was cancelled."))
            self.counters.cancelled += 1
            if self._in_step and all(item.job.done.is_set() for item in self._in_step):
                self._context.abort()

    def stop(self, error: FerrumError | None = None) -> None:
        """Fail everything with ``error``, wait for the thread, free the context."""
        reason = error or Unavailable("The server is shutting down.", retry_after_s=5)
        with self._lock:
            if self._stop_error is not None:
                return
            self._stop_error = reason
            for job in [*self._queue.take_all(), *(item.job for item in self._in_step)]:
                job.fail(reason)
            self._context.abort()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._context.close()

    # -- the worker's thread -----------------------------------------------------------------

    def _run(self) -> None:
        while items := self._next_step():
            try:
                self._step(items)
            except Exception as error:  # the next request must find a worker
                logger.exception("embedding failed; the requests of this step end with an error")
                self._fail(items, _as_ours(error))
            finally:
                with self._lock:
                    self._in_step = []

    def _next_step(self) -> list[Item]:
        """Wait for work; empty when it is time to go."""
        with self._lock:
            while True:
                if self._stop_error is None:
                    items = self._queue.take_step(
                        n_tokens=self._n_tokens, n_sequences=self._n_sequences
                    )
                    if items:
                        self._in_step = items
                        return items
                if self._stop_error is not None or not (
                    self._changed.wait(IDLE_S) or len(self._queue)
                ):
                    self._thread = None
                    return []

    def _step(self, items: list[Item]) -> None:
        try:
            suspects = self._embed(items)
        except DecodeError as error:
            if all(item.job.done.is_set() for item in items):  # aborted, and nobody waits
                return
            logger.error("%s; the context for embeddings is rebuilt", error)
            self._context.rebuild()
            suspects = items
        # One bad text must fail only its own request: each has a step alone.
        for item in suspects:
            if not item.job.done.is_set():
                self._embed_alone(item)

    def _embed_alone(self, item: Item) -> None:
        try:
            failed = self._embed([item])
        except DecodeError as error:
            self._fail(
                [item], GenerationFailed(f"input[{item.place}] cannot be embedded ({error}).")
            )
            self._context.rebuild()
            return
        if failed:
            self._fail(
                [item],
                GenerationFailed(
                    f"input[{item.place}]: the model's vector has numbers that are not finite; "
                    "the model file may be damaged."
                ),
            )

    def _embed(self, items: list[Item]) -> list[Item]:
        """Run a step and hand out its vectors.

        :returns: items whose vectors are not finite. What attention leaves out it multiplies
            by 0, so NaN in one text spoils the others of its step.
        """
        began_s = time.perf_counter()
        rows = self._context.embed([item.tokens for item in items])
        self._step_s += 0.2 * (time.perf_counter() - began_s - self._step_s)
        self.counters.steps += 1
        self.counters.inputs += len(items)
        self.counters.tokens += sum(len(item.tokens) for item in items)
        is_bad = np.logical_not(np.isfinite(rows)).any(axis=1)
        bad = set(np.flatnonzero(is_bad).tolist())
        for i, item in enumerate(items):
            if i not in bad:
                item.job.put(item.place, rows[i])
        return [items[i] for i in sorted(bad)]

    def _fail(self, items: list[Item], error: FerrumError) -> None:
        with self._lock:
            for item in items:
                self._queue.discard(item.job)
                item.job.fail(error)


def _as_ours(error: Exception) -> FerrumError:
    if isinstance(error, FerrumError):
        return error
    return GenerationFailed("An internal error ended this request.")
