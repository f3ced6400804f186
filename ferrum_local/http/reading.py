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
# A client that sends slowly, or a large body, holds up the others for so long, and a crowd at most
# for as many turns more as one that is far back waits before it looks.
MAX_TURN_S = 0.005
_FURTHEST_BACK = 4


class ReadingTurns:
    """One thread's turn at a time.

    :param max_turn_s: after so long a turn is over, whether or not its thread has ended it.
    """

    def __init__(self, max_turn_s: float = MAX_TURN_S) -> None:
        self._max_turn_s = max_turn_s
        self._free = threading.Condition()
        self._reader: int | None = None  # a thread
        self._until_s = 0.0  # monotonic
        self.n_waiting = 0

    def begin(self) -> None:
        """Wait for this thread's turn."""
        with self._free:
            # As a rule each is told when its turn has come. If all looked whether the turn before
            # is overdue, a crowd would do little else; those further back look less often.
            n_before = min(self.n_waiting, _FURTHEST_BACK)
            self.n_waiting += 1
            while self._reader is not None and (left_s := self._until_s - time.monotonic()) > 0:
                self._free.wait(left_s + n_before * self._max_turn_s)
            self.n_waiting -= 1
            self._reader = threading.get_ident()
            self._until_s = time.monotonic() + self._max_turn_s

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
