"""What a server that belongs to another program is tied to: that program, or its own stdin.

A lifeline is a file descriptor that becomes readable when it may be cut, so that it can be waited
for beside signals. PR_SET_PDEATHSIG is not used for the program's end: it tells of the end of
the *thread* that started us, and thread pools end threads while their program lives on.
"""

from __future__ import annotations

import contextlib
import logging
import ntpath
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ferrum_local.errors import ConfigError
from ferrum_local.server.config import ServeConfig

log = logging.getLogger("ferrum_local.server")

PARENT_EXITED = "parent_exited"
STDIN_CLOSED = "stdin_closed"
_STDIN = 0
_PARENT_POLL_S = 1.0  # only where the system cannot tell of another process's end
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Lifeline(Protocol):
    """``reason`` says what was cut, in events."""

    reason: str

    def fileno(self) -> int: ...

    def is_cut(self) -> bool:
        """To be asked when the descriptor can be read."""
        ...

    def close(self) -> None: ...


@contextlib.contextmanager
def open_lifelines(config: ServeConfig) -> Iterator[Sequence[Lifeline]]:
    """Those that ``config`` asks for; empty for a server on its own.

    :raises ConfigError: stdin is none that somebody could close.
    """
    with contextlib.ExitStack() as opened:
        lines: list[Lifeline] = []
        if config.exit_on_stdin_close:
            lines.append(_stdin_lifeline())
            opened.callback(lines[-1].close)
        if config.exit_with_parent:
            lines.append(_parent_lifeline(_parent_pid()))
            opened.callback(lines[-1].close)
        yield lines


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent, whose main thread started it, ends.

    Linux only; elsewhere the end of the pipe from the parent has to do.
    """
    if sys.platform != "linux":
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        log.warning("prctl(PR_SET_PDEATHSIG): %s", os.strerror(ctypes.get_errno()))
    if os.getppid() != parent_pid:  # it ended before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)


class _Stdin:
    """Cut at the end of stdin. What is written there is read and ignored."""

    reason = STDIN_CLOSED

    def fileno(self) -> int:
        return _STDIN

    def is_cut(self) -> bool:
        try:
            return os.read(_STDIN, 65536) == b""
        except BlockingIOError:
            return False
        except OSError:  # a terminal that hung up
            return True

    def close(self) -> None:
        """Stdin is not ours to close."""


class _Process:
    """Cut when a process ends; ``fd`` is one that the system makes readable then."""

    reason = PARENT_EXITED

    def __init__(self, fd: int, close: Callable[[], None]) -> None:
        self._fd = fd
        self._close = close

    def fileno(self) -> int:
        return self._fd

    def is_cut(self) -> bool:
        return True

    def close(self) -> None:
        self._close()


class _Waiting:
    """Cut when ``wait``, which a thread of its own runs, returns."""

    def __init__(self, reason: str, wait: Callable[[], None]) -> None:
        self.reason = reason
        self._receiver, self._sender = socket.socketpair()
        self._wait = wait
        threading.Thread(target=self._run, name=reason, daemon=True).start()

    def fileno(self) -> int:
        return self._receiver.fileno()

    def is_cut(self) -> bool:
        return True

    def close(self) -> None:
        self._receiver.close()

    def _run(self) -> None:
        self._wait()
        self._sender.close()


def _stdin_lifeline() -> Lifeline:
    mode = os.fstat(_STDIN).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(_STDIN)):
        raise ConfigError(
            "--exit-on-stdin-close: stdin is not a pipe; start the server with a pipe as its "
            "stdin and keep that open"
        )
    if sys.platform == "win32":  # there, only sockets can be waited for beside others
        return _Waiting(STDIN_CLOSED, _wait_for_end_of_stdin)
    return _Stdin()


def _wait_for_end_of_stdin() -> None:
    line = _Stdin()
    while not line.is_cut():
        pass  # each look waits for more to read


def _parent_pid() -> int:
    """Of the program that started the server, launchers left out."""
    if sys.platform != "win32":
        return os.getppid()
    import psutil

    try:
        ancestors = [(p.pid, p.exe()) for p in psutil.Process().parents()]
    except psutil.Error as exc:
        log.debug("The programs above this one cannot be listed: %s", exc)
        ancestors = []
    return first_above(ancestors, os.path.dirname(sys.executable), default=os.getppid())


def first_above(
    ancestors: Sequence[tuple[int, str]], launcher_directory: str, *, default: int
) -> int:
    """The pid of the nearest ancestor that is no launcher of a virtual environment.

    On Windows, ``ferrum-local.exe`` and ``python.exe`` of one start the real Python and wait for
    it: they outlive the app that started them for as long as we live.

    :param ancestors: pid and path of the program, the nearest first.
    """

    def directory_of(path: str) -> str:
        return ntpath.normcase(ntpath.dirname(path))

    for pid, path in ancestors:
        if directory_of(path) != ntpath.normcase(launcher_directory):
            return pid
    return default


def _parent_lifeline(pid: int) -> Lifeline:
    if sys.platform == "win32":
        return _Waiting(PARENT_EXITED, _windows_wait(pid))
    line = _process_lifeline(pid)
    if line is not None:
        return line

    def wait() -> None:
        while os.getppid() == pid:
            time.sleep(_PARENT_POLL_S)

    return _Waiting(PARENT_EXITED, wait)


def _process_lifeline(pid: int) -> Lifeline | None:
    """Told by the kernel, where it can. None: it cannot, or ``pid`` is our parent no more."""
    try:
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            fd = os.pidfd_open(pid)
            line = _Process(fd, lambda: os.close(fd))
        elif sys.platform != "linux" and sys.platform != "win32":
            import select

            queue = select.kqueue()
            line = _Process(queue.fileno(), queue.close)
            ended = select.kevent(
                pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, fflags=select.KQ_NOTE_EXIT
            )
            queue.control([ended], 0)
        else:
            return None
    except OSError as exc:  # an old kernel, a sandbox, or it is gone
        log.debug("Waiting for the end of process %d: %s", pid, exc)
        return None
    if os.getppid() != pid:  # the number may be another's already
        line.close()
        return None
    return line


def _windows_wait(pid: int) -> Callable[[], None]:
    """A wait for the end of the process ``pid``, by a handle that keeps its number taken."""
    if sys.platform != "win32":
        raise NotImplementedError
    import ctypes

    synchronize, infinite = 0x00100000, 0xFFFFFFFF
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel32.OpenProcess.restype = ctypes.c_void_p
    handle = kernel32.OpenProcess(synchronize, False, pid)
    if not handle:
        return lambda: None  # it is gone already
    return lambda: kernel32.WaitForSingleObject(ctypes.c_void_p(handle), infinite)
