"""Counts of requests: started, succeeded, failed, cancelled, and the rate of the last minute."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable

from ferrum_local.errors import Cancelled, FerrumError

_WINDOW_S = 60.0


@dataclasses.dataclass(frozen=True)
class Totals:
    started: int
    succeeded: int
    failed: int
    cancelled: int
    throughput_rps: float  # requests that ended in the last minute, per second


class ActivityLog:
    """Thread-safe request counters.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started = self._succeeded = self._failed = self._cancelled = 0
        self._ends: collections.deque[float] = collections.deque()

    def started(self) -> None:
        with self._lock:
            self._started += 1

    def finished(self, error: FerrumError | None) -> None:
        """A request ended: None is success, ``Cancelled`` is neither success nor failure."""
        now = self._clock()
        with self._lock:
            if error is None:
                self._succeeded += 1
            elif isinstance(error, Cancelled):
                self._cancelled += 1
            else:
                self._failed += 1
            self._ends.append(now)
            self._forget_old(now)

    def _forget_old(self, now_s: float) -> None:
        while self._ends and self._ends[0] < now_s - _WINDOW_S:
            self._ends.popleft()

    def totals(self) -> Totals:
        now = self._clock()
        with self._lock:
            self._forget_old(now)
            return Totals(
                self._started,
                self._succeeded,
                self._failed,
                self._cancelled,
                len(self._ends) / _WINDOW_S,
            )
