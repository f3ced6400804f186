"""Requests are read one after the other, so that a crowd does not hold up what computes.

Reading a request is a millisecond or two of Python. Dozens of threads that read at once all wait
for the interpreter lock, and a decode thread whose step has ended waits among them; read in turn,
each request is with the engine sooner, and the decode thread waits for one reader at most.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

READING_TURNS = "ferrum.reading_turns"  # in the WSGI environ
# A client that sends slowly, or a large body, holds up the others for so long and no longer.
MAX_TURN_S = 0.005


class ReadingTurns:
    """One thread's turn at a time.

    :param max_turn_s: for so long a thread waits for each that came before it, and then reads at
        once. As a rule it is told much sooner; to look at each end of a turn whether it is over
        time would wake all who wait, again and again.
    """

    def __init__(self, max_turn_s: float = MAX_TURN_S) -> None:
        self._max_turn_s = max_turn_s
        self._free = threading.Condition()
        self._reader: int | None = None  # a thread
        self.n_waiting = 0

    def begin(self) -> None:
        """Wait for this thread's turn."""
        with self._free:
            self.n_waiting += 1
            until_s = time.monotonic() + self.n_waiting * self._max_turn_s
            while self._reader is not None and (left_s := until_s - time.monotonic()) > 0:
                self._free.wait(left_s)
            self.n_waiting -= 1
            self._reader = threading.get_ident()

    def end(self) -> None:
        """End this thread's turn, if it still has one."""
        if self._reader != threading.get_ident():
            return
        with self._free:
            if self._reader == threading.get_ident():
                self._reader = None
                self._free.notify()


def was_read(environ: WSGIEnvironment) -> None:
    """Say that from here on the request waits for the engine."""
    turns: ReadingTurns | None = environ.get(READING_TURNS)
    if turns is not None:
        turns.end()


def are_others_unread(environ: WSGIEnvironment) -> bool:
    """Whether requests have come that wait to be read."""
    turns: ReadingTurns | None = environ.get(READING_TURNS)
    return turns is not None and turns.n_waiting > 0
