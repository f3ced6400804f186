"""The one thread that ends what takes too long."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from ferrum_local.errors import Unavailable
from ferrum_local.http.time_limits import TimeLimits
from tests.fakes import wait_until


def test_what_takes_too_long_is_told_once() -> None:
    calls: list[float] = []
    started_s = time.monotonic()
    with TimeLimits().limit(0.05, lambda: calls.append(time.monotonic() - started_s)):
        wait_until(lambda: bool(calls))
        time.sleep(0.1)
    (after_s,) = calls
    assert after_s >= 0.05


def test_nothing_is_told_after_the_block_and_the_thread_ends() -> None:
    limits = TimeLimits()
    calls: list[int] = []
    with ExitStack() as held:
        for i in range(20):
            held.enter_context(limits.limit(0.1, lambda i=i: calls.append(i)))  # type: ignore[misc]
    wait_until(lambda: not limits._is_running)
    assert calls == [] and not limits._due and not limits._callbacks


def test_a_sooner_limit_does_not_wait_for_a_later_one() -> None:
    limits = TimeLimits()
    order: list[str] = []
    done = threading.Event()
    before = set(threading.enumerate())
    with (
        limits.limit(60, lambda: order.append("never")),
        limits.limit(0.2, done.set),
        limits.limit(0.1, lambda: order.append("second")),
        limits.limit(0.05, lambda: order.append("first")),
    ):
        assert len(set(threading.enumerate()) - before) == 1
        assert done.wait(10)
    assert order == ["first", "second"]


def test_without_a_thread_to_be_had_nothing_is_begun_and_the_next_limit_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    limits = TimeLimits()
    told = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(Unavailable), limits.limit(60, told.set):
            pass
    with limits.limit(0.05, told.set):
        assert told.wait(10)


def test_a_callback_that_fails_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("injected")

    limits = TimeLimits()
    told = threading.Event()
    with limits.limit(0.01, broken), limits.limit(0.05, told.set):
        assert told.wait(10)
    assert "injected" in caplog.text
