"""Routes llama.cpp's and ggml's log lines into Python's logging.

Without this, native code writes to stderr by itself, past the server's log format.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import functools
import logging
import re
import threading
import time

import llama_cpp

from ferrum_local import cpp_runtime

cpp_runtime.start()  # now: a program may import a library with another one before it loads a model

logger = logging.getLogger("ferrum_local.llama_cpp")

# ggml_log_level -> logging level. CONT (5) continues the line before it.
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUATION = 5
# Said where images become vectors, and wanted there.
_HARMLESS = re.compile("some input tokens were not marked as outputs|model default pooling_type is")
_N_RECENT_LINES = 50
_ABORT_S = 1.0


class NativeLog:
    """Collects native log text into lines and remembers the last ones for error messages."""

    def __init__(self) -> None:
        self.recent: collections.deque[tuple[int, str]] = collections.deque(maxlen=_N_RECENT_LINES)
        self._abort_until_s = 0.0  # monotonic
        self._lock = threading.Lock()
        self._level = logging.DEBUG
        self._partial = ""
        self._callback: object = None

    def take_mtmd(self) -> None:
        """Take the lines of llama.cpp's library for images too, which is loaded by this."""
        from llama_cpp import mtmd_cpp

        mtmd_cpp.mtmd_log_set(self._callback, ctypes.c_void_p(0))
        mtmd_cpp.mtmd_helper_log_set(self._callback, ctypes.c_void_p(0))
        atexit.register(_uninstall_mtmd)

    def expect_abort(self) -> None:
        """A decode is being aborted, which llama.cpp reports as errors in a moment."""
        self._abort_until_s = time.monotonic() + _ABORT_S

    def write(self, level: int, text: str) -> None:
        """Take a piece of a line; any native thread may call this."""
        with self._lock:
            lines = self._complete_lines(level, text)
        for line_level, line in lines:
            # llama.cpp's own INFO is a page per model: DEBUG here.
            logger.log(line_level, "%s", line)

    def _complete_lines(self, level: int, text: str) -> list[tuple[int, str]]:
        lines: list[tuple[int, str]] = []
        if level != _CONTINUATION:
            self._level = _LEVELS.get(level, logging.DEBUG)
        self._partial += text
        while "\n" in self._partial:
            line, self._partial = self._partial.split("\n", 1)
            if line.strip(" ."):
                is_harmless = (
                    time.monotonic() < self._abort_until_s or _HARMLESS.search(line) is not None
                )
                line_level = logging.DEBUG if is_harmless else self._level
                lines.append((line_level, line.strip()))
        self.recent.extend(lines)
        return lines

    def last_errors(self) -> list[str]:
        """The recent error lines, oldest first: the first is usually the cause of the others."""
        return [line for level, line in self.recent if level >= logging.ERROR]


@functools.lru_cache(maxsize=1)
def install() -> NativeLog:
    """Install the callback and start llama.cpp's backend, once per process."""
    log = NativeLog()

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def callback(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
        log.write(level, text.decode("utf-8", errors="replace"))

    log._callback = callback
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    # Native threads must not call into Python once the interpreter goes away;
    # the closure also keeps the callback alive for as long as C may call it.
    atexit.register(lambda: _uninstall(callback))
    llama_cpp.llama_backend_init()
    return log


def _uninstall(_callback: object) -> None:
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))


def _uninstall_mtmd() -> None:
    from llama_cpp import mtmd_cpp

    mtmd_cpp.mtmd_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))
    mtmd_cpp.mtmd_helper_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))
