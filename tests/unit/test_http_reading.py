"""One request is read at a time, and nobody can hold the others up for long."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from ferrum_local.http.departures import DepartureWatch
from ferrum_local.http.reading import READING_TURNS, ReadingTurns, are_others_unread, was_read
from tests.fakes import wait_until

FOR_EVER_S = 3600.0


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_the_next_is_read_once_the_one_before_was() -> None:
    turns = ReadingTurns(FOR_EVER_S)
    began: list[int] = []
    turns.begin()

    def read(i: int) -> None:
        turns.begin()
        began.append(i)
        turns.end()

    assert not are_others_unread({READING_TURNS: turns})
    threads = [in_thread(functools.partial(read, i)) for i in range(5)]
    wait_until(lambda: turns.n_waiting == 5)
    assert began == []
    assert are_others_unread({READING_TURNS: turns})
    was_read({READING_TURNS: turns})
    for thread in threads:
        thread.join(10)
    assert sorted(began) == [0, 1, 2, 3, 4]
    assert not are_others_unread({READING_TURNS: turns})


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
    assert not are_others_unread({})


def test_a_request_counts_as_read_once_the_engine_works_for_it() -> None:
    turns = ReadingTurns(FOR_EVER_S)
    turns.begin()
    with DepartureWatch().watch({READING_TURNS: turns}, lambda: None):
        assert turns._reader is None
