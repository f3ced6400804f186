"""A bounded queue between threads of which any may give up."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """What is put in is iterated on another thread; whoever waits is let go when it ends."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: collections.deque[T] = collections.deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None

    def put(self, item: T) -> bool:
        """Wait for room. False: the channel has ended, ``item`` was not taken."""
        with self._changed:
            while len(self._items) >= self._capacity and not self._ended:
                self._changed.wait()
            if self._ended:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: Exception | None = None) -> None:
        """Take nothing more. What is there is still read, then ``error`` raised.

        Only the first end counts.
        """
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def close(self) -> None:
        """End at once, and forget what is there."""
        with self._changed:
            self._items.clear()
            self._ended, self._error = True, None
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                while not self._items and not self._ended:
                    self._changed.wait()
                if not self._items:
                    if self._error is not None:
                        raise self._error
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
