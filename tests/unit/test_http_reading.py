"""One request is read at a time, and nobody can hold the others up for long."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from ferrum_local.http.departures import DepartureWatch
from ferrum_local.http.reading import WAS_READ, ReadingTurns, was_read
from tests.fakes import wait_until

FOR_EVER_S = 3600.0


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_the_next_is_read_once_the_one_before_was() -> None:
    turns = ReadingTurns(FOR_EVER_S)
    came: list[int] = []
    began: list[int] = []
    turns.begin()

    def read(i: int) -> None:
        came.append(i)
        turns.begin()
        began.append(i)
        turns.end()

    threads = [in_thread(functools.partial(read, i)) for i in range(5)]
    wait_until(lambda: len(came) == 5)
    assert began == []
    was_read({WAS_READ: turns.end})
    for thread in threads:
        thread.join(10)
    assert sorted(began) == [0, 1, 2, 3, 4]


def test_one_that_takes_too_long_loses_its_turn_and_ends_no_other() -> None:
    turns = ReadingTurns(0.05)
    turns.begin()
    other_has_it, other_may_go = threading.Event(), threading.Event()

    def read() -> None:
        turns.begin()
        other_has_it.set()
        assert other_may_go.wait(10)
        turns.end()

    other = in_thread(read)
    assert other_has_it.wait(10)
    turns.end()  # too late: it is the other's turn
    assert turns._reader == other.ident
    other_may_go.set()
    other.join(10)
    assert turns._reader is None


def test_a_server_without_turns_needs_none() -> None:
    was_read({})


def test_a_request_counts_as_read_once_the_engine_works_for_it() -> None:
    was_told = threading.Event()
    with DepartureWatch().watch({WAS_READ: was_told.set}, lambda: None):
        assert was_told.is_set()
