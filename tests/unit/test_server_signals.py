from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ferrum_local.server.signals import SignalInbox, stop_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="os.kill means something else there")


@pytest.fixture(autouse=True)
def put_handlers_back() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def test_a_signal_is_a_value_and_interrupts_nothing() -> None:
    with SignalInbox(stop_signals()) as inbox:
        os.kill(os.getpid(), signal.SIGINT)
        assert inbox.wait(60) == ([signal.SIGINT], [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert inbox.wait(60) == ([signal.SIGTERM], [])
        assert inbox.wait(0) == ([], [])


def test_a_late_ctrl_c_is_ignored() -> None:
    with SignalInbox(stop_signals()):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)


def test_wake_and_watched_files_end_the_wait() -> None:
    reader, writer = os.pipe()
    try:
        with SignalInbox(stop_signals()) as inbox:
            threading.Thread(target=inbox.wake).start()
            assert inbox.wait(60) == ([], [])
            inbox.watch(reader)
            os.write(writer, b"x")
            assert inbox.wait(60) == ([], [reader])
            inbox.unwatch(reader)
            assert inbox.wait(0) == ([], [])
    finally:
        os.close(reader)
        os.close(writer)


def test_nohup_keeps_hangups_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signal.SIGHUP not in stop_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert {signal.SIGINT, signal.SIGTERM} <= set(stop_signals())
