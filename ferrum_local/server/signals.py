"""Signals as something that can be waited for, beside other files, without waking in between."""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Sequence
from types import FrameType, TracebackType


def stop_signals() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to stop, on this platform."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    found = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # ``nohup`` has SIGHUP ignored: leave it so.
    return tuple(s for s in found if signal.getsignal(s) != signal.SIG_IGN or s == signal.SIGINT)


class SignalInbox:
    """Takes ``signals`` for as long as the context lasts, and has them ignored afterwards: the
    process is about to end, and a last impatient Ctrl-C must not turn that into a traceback.

    Main thread only. Handlers do nothing but note the signal, so no code is ever interrupted
    half-way and no KeyboardInterrupt is raised anywhere.
    """

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._signals = tuple(signals)
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._receiver, selectors.EVENT_READ)

    def __enter__(self) -> SignalInbox:
        self._old_wakeup_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in self._signals:
            signal.signal(number, _note)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number in self._signals:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._old_wakeup_fd)
        self._selector.close()
        self._receiver.close()
        self._sender.close()

    def watch(self, fd: int) -> None:
        """Have ``wait`` return when ``fd`` can be read, too."""
        self._selector.register(fd, selectors.EVENT_READ)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def wake(self) -> None:
        """Make ``wait`` return; safe from any thread."""
        try:
            self._sender.send(b"\0")
        except BlockingIOError:
            pass  # full: it is about to wake anyway

    def wait(self, timeout_s: float | None = None) -> tuple[list[signal.Signals], list[int]]:
        """Block until a signal, a readable watched fd, ``wake`` or the timeout.

        :returns: the signals that came and the watched fds that can be read.
        """
        ready = [key.fd for key, _ in self._selector.select(timeout_s)]
        numbers: list[int] = []
        if self._receiver.fileno() in ready:
            ready.remove(self._receiver.fileno())
            numbers.extend(self._receiver.recv(4096))
        known = {int(s): s for s in self._signals}
        return [known[n] for n in numbers if n in known], ready


def _note(_number: int, _frame: FrameType | None) -> None:
    """The wake-up fd has it already."""
