"""Requests that compute one after the other, for runtimes that cannot mix them in one step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ferrum_local.errors import Cancelled, FerrumError, QueueFull, Unavailable
from ferrum_local.vectors import AnyRequest, EarlyEnd, EmbeddingCounters, Ends

_POLL_S = 0.1


class ComputeTurns:
    """Who computes, and who waits for it.

    :param max_queue: requests that may wait; one more is refused.
    """

    def __init__(self, max_queue: int, counters: EmbeddingCounters) -> None:
        self._max_queue = max_queue
        self._counters = counters
        self._one_at_a_time = threading.Lock()
        self._lock = threading.Lock()
        self._stop_error: FerrumError | None = None
        self.n_waiting = 0

    @contextmanager
    def turn(self, request: AnyRequest, ends: Ends) -> Iterator[Callable[[], None]]:
        """Compute within the block, and call what it gives now and then: it raises when the
        request has to end.

        :raises QueueFull: too many wait already. FerrumError: it had to end while it waited.
        """
        early_end = EarlyEnd(request, ends)
        cancelled = threading.Event()
        self._wait_in_line()
        ends.on_start(cancelled.set)

        def check() -> None:
            reason = early_end.reason() or self._stop_error
            if cancelled.is_set():
                reason = Cancelled("The request was cancelled.")
            if reason is not None:
                self._counters.cancelled += 1
                raise reason

        try:
            while not self._one_at_a_time.acquire(timeout=_POLL_S):
                check()
        finally:
            with self._lock:
                self.n_waiting -= 1
        try:
            yield check
        finally:
            self._one_at_a_time.release()

    def _wait_in_line(self) -> None:
        with self._lock:
            if self._stop_error is not None:
                raise self._stop_error
            if self.n_waiting >= max(1, self._max_queue):
                raise QueueFull(
                    f"{self.n_waiting} requests for embeddings are waiting already (--max-queue "
                    f"{self._max_queue}); try again later",
                    retry_after_s=self.n_waiting,
                )
            self.n_waiting += 1

    def stop(self, error: FerrumError | None) -> None:
        """Refuse and end everything."""
        with self._lock:
            self._stop_error = error or Unavailable("The server is shutting down.", retry_after_s=5)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Wait until nobody computes; nobody does within the block."""
        with self._one_at_a_time:
            yield
