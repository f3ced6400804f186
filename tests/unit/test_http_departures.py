"""The one thread that notices clients leaving."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ferrum_local.errors import Unavailable
from ferrum_local.http.departures import DepartureWatch
from tests.fakes import wait_until


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def watching_threads() -> Callable[[], int]:
    """How many threads of the test's own watch; servers of earlier tests may have theirs."""
    before = set(threading.enumerate())
    return lambda: sum(
        thread.name == "departures" for thread in set(threading.enumerate()) - before
    )


def test_str_03_a_close_is_told_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    told = threading.Event()
    with DepartureWatch().watch({"gunicorn.socket": ours}, told.set):
        assert not told.is_set()
        theirs.close()
        assert told.wait(10)


def test_what_comes_later_is_seen_by_a_plain_select_too(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where select() looks at what it was called with only."""
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    ours, theirs = pair
    second, second_peer = socket.socketpair()
    told = threading.Event()
    watch = DepartureWatch(linger_s=300)
    with second, watch.watch({"gunicorn.socket": ours}, lambda: None):
        time.sleep(0.05)  # its thread waits in select() by now
        with watch.watch({"gunicorn.socket": second}, told.set):
            second_peer.close()
            assert told.wait(10)


def test_a_pipelined_request_is_no_departure_and_stays_where_it_is(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    told = threading.Event()
    watch = DepartureWatch()
    with watch.watch({"gunicorn.socket": ours}, told.set):
        theirs.send(b"GET / HTTP/1.1\r\n")
        wait_until(lambda: ours.fileno() not in _watched(watch))
    assert not told.is_set()
    assert ours.recv(100) == b"GET / HTTP/1.1\r\n"


def _watched(watch: DepartureWatch) -> set[int]:
    return set(watch._selector.get_map()) if watch._selector else set()


def test_nothing_is_told_after_the_block(
    pair: tuple[socket.socket, socket.socket], watching_threads: Callable[[], int]
) -> None:
    ours, theirs = pair
    told = threading.Event()
    with DepartureWatch(linger_s=0.05).watch({"gunicorn.socket": ours}, told.set):
        pass
    theirs.close()
    wait_until(lambda: watching_threads() == 0)
    assert not told.is_set()


def test_one_thread_serves_all_and_ends_when_there_is_nothing_to_watch(
    watching_threads: Callable[[], int],
) -> None:
    watch = DepartureWatch(linger_s=0.05)
    for _ in range(20):
        pairs = [socket.socketpair() for _ in range(3)]
        told = [threading.Event() for _ in pairs]
        with watch.watch({"gunicorn.socket": pairs[0][0]}, told[0].set):
            with watch.watch({"gunicorn.socket": pairs[1][0]}, told[1].set):
                pairs[1][1].close()
                assert told[1].wait(10)
            assert watching_threads() == 1
        assert not told[0].is_set()
        for ours, theirs in pairs:
            ours.close()
            theirs.close()
    wait_until(lambda: watching_threads() == 0)


def test_a_callback_that_fails_does_not_end_the_watch(
    pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("injected")

    ours, theirs = pair
    second, second_peer = socket.socketpair()
    told = threading.Event()
    watch = DepartureWatch()
    with (
        second,
        watch.watch({"gunicorn.socket": ours}, broken),
        watch.watch({"gunicorn.socket": second}, told.set),
    ):
        theirs.close()
        wait_until(lambda: "injected" in caplog.text)
        second_peer.close()
        assert told.wait(10)


def test_without_a_thread_to_be_had_nothing_is_begun_and_the_next_watch_works(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ours, theirs = pair
    told = threading.Event()
    watch = DepartureWatch()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(Unavailable), watch.watch({"gunicorn.socket": ours}, told.set):
            pass
    with watch.watch({"gunicorn.socket": ours}, told.set):
        theirs.close()
        assert told.wait(10)


def test_a_descriptor_used_anew_is_not_taken_for_the_old_connection(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The old one's end can be known, but not told yet, when the next request begins."""
    ours, theirs = pair
    watch = DepartureWatch()
    with watch.watch({"gunicorn.socket": ours}, lambda: None):
        assert watch._selector is not None
        ended = watch._selector.get_key(ours)._replace(fileobj=socket.socket())
        ended.fileobj.close()
        with watch._lock:
            assert watch._look(ended, reader=theirs) is None
            assert ours.fileno() in _watched(watch)


def test_a_request_without_a_socket_is_left_to_others(
    watching_threads: Callable[[], int],
) -> None:
    with DepartureWatch().watch({}, lambda: None):
        assert watching_threads() == 0
