"""Requests that compute one after the other: who waits, who is refused, and how each ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ferrum_local.errors import Cancelled, FerrumError, QueueFull, Unavailable
from ferrum_local.turns import ComputeTurns
from ferrum_local.types import EmbeddingRequest
from ferrum_local.vectors import EmbeddingCounters, Ends
from tests.fakes import wait_until

REQUEST = EmbeddingRequest(id="e", model_id="", inputs=("x",))


class Waiter:
    """A request on a thread of its own; ``ended`` is set with its ``error``."""

    def __init__(self, turns: ComputeTurns, is_abandoned: Callable[[], bool] | None = None) -> None:
        self.error: FerrumError | None = None
        self.cancels: list[Callable[[], None]] = []
        self._turns = turns
        self._ends = Ends(self.cancels.append, is_abandoned)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._turns.turn(REQUEST, self._ends):
                pass
        except FerrumError as error:
            self.error = error

    def end(self) -> FerrumError | None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.error


def test_one_computes_one_waits_and_the_next_is_refused() -> None:
    turns = ComputeTurns(1, EmbeddingCounters())
    with turns.turn(REQUEST, Ends()):
        waiter = Waiter(turns)
        wait_until(lambda: turns.n_waiting == 1)
        with pytest.raises(QueueFull, match="1 requests"), turns.turn(REQUEST, Ends()):
            pass
    assert waiter.end() is None
    assert turns.n_waiting == 0


def test_who_waits_ends_when_cancelled_or_when_its_client_left() -> None:
    counters = EmbeddingCounters()
    turns = ComputeTurns(8, counters)
    with turns.turn(REQUEST, Ends()):
        cancelled, gone = Waiter(turns), Waiter(turns, lambda: True)
        wait_until(lambda: bool(cancelled.cancels))
        cancelled.cancels[0]()
        for waiter in (cancelled, gone):
            assert isinstance(waiter.end(), Cancelled)
        assert turns.n_waiting == 0
    assert counters.cancelled == 2


def test_who_computes_ends_at_its_next_check() -> None:
    cancels: list[Callable[[], None]] = []
    turns = ComputeTurns(8, EmbeddingCounters())
    with pytest.raises(Cancelled), turns.turn(REQUEST, Ends(cancels.append)) as check:
        check()
        cancels[0]()
        check()
    with turns.turn(REQUEST, Ends()):  # its place is free again
        pass


def test_stopping_ends_all_and_lets_nobody_in() -> None:
    turns = ComputeTurns(8, EmbeddingCounters())
    with pytest.raises(Unavailable), turns.turn(REQUEST, Ends()) as check:
        waiter = Waiter(turns)
        wait_until(lambda: turns.n_waiting == 1)
        turns.stop(None)
        assert isinstance(waiter.end(), Unavailable)
        check()
    with turns.idle(), pytest.raises(Unavailable), turns.turn(REQUEST, Ends()):
        pass
