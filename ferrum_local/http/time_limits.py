"""Calls back when a time is up. One thread for all limits: a thread for each would cost more than
most requests' bodies take to read."""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ferrum_local.errors import Unavailable

log = logging.getLogger(__name__)


class _Entry(NamedTuple):
    due_s: float  # monotonic
    number: int


class TimeLimits:
    """Its thread starts with the first limit and ends when it finds none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[_Entry] = []  # a heap; those without a callback are over
        self._callbacks: dict[int, Callable[[], None]] = {}  # by number
        self._n_entries = 0
        self._is_running = False

    @contextlib.contextmanager
    def limit(self, timeout_s: float, on_expired: Callable[[], None]) -> Iterator[None]:
        """Have ``on_expired`` called if the block takes longer than ``timeout_s``.

        It runs at most once, on another thread, and must not block.

        :raises Unavailable: there can be no such thread.
        """
        number = self._add(time.monotonic() + timeout_s, on_expired)
        try:
            yield
        finally:
            with self._changed:
                self._callbacks.pop(number, None)

    def _add(self, due_s: float, on_expired: Callable[[], None]) -> int:
        with self._changed:
            self._n_entries += 1
            entry = _Entry(due_s, self._n_entries)
            heapq.heappush(self._due, entry)
            self._callbacks[entry.number] = on_expired
            if not self._is_running:
                thread = threading.Thread(target=self._run, name="time-limits", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    del self._callbacks[entry.number]
                    raise Unavailable("The system has no thread left.", retry_after_s=5) from error
                self._is_running = True
            elif self._due[0] is entry:
                self._changed.notify()  # sooner than what it waits for
            return entry.number

    def _run(self) -> None:
        while (on_expired := self._next()) is not None:
            try:
                on_expired()
            except Exception:  # one request's trouble must not end the limits of all
                log.exception("ending what took too long failed")

    def _next(self) -> Callable[[], None] | None:
        """Wait until a time is up. None: there is nothing to wait for."""
        with self._changed:
            while True:
                while self._due and self._due[0].number not in self._callbacks:
                    heapq.heappop(self._due)
                if not self._due:
                    self._is_running = False
                    return None
                due_s, number = self._due[0]
                left_s = due_s - time.monotonic()
                if left_s <= 0:
                    heapq.heappop(self._due)
                    return self._callbacks.pop(number)
                self._changed.wait(left_s)
