"""Caps how many long-lived replies are open, so that short requests always find a thread."""

from __future__ import annotations

import threading

from ferrum_local.errors import Unavailable

RETRY_AFTER_S = 2.0


class Admission:
    """One taken place. Use it as a context manager, or call ``release`` (twice is fine)."""

    def __init__(self, gate: StreamGate) -> None:
        self._gate = gate
        self._held = True

    def release(self) -> None:
        with self._gate._lock:
            if self._held:
                self._held = False
                self._gate._open -= 1

    def __enter__(self) -> Admission:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class StreamGate:
    """Counts open streams and sockets against ``limit``, a number below the server's threads.

    :param what: is counted; for the message.
    """

    def __init__(self, limit: int, what: str = "streams") -> None:
        self.limit = limit
        self._what = what
        self._lock = threading.Lock()
        self._open = 0

    @property
    def open(self) -> int:
        with self._lock:
            return self._open

    def admit(self) -> Admission:
        """Take a place now; it stays taken until the admission is released.

        :raises Unavailable: when all are taken (HTTP 503 with Retry-After).
        """
        with self._lock:
            if self._open >= self.limit:
                raise Unavailable(
                    f"All {self.limit} {self._what} of this server are in use. Try again shortly.",
                    retry_after_s=RETRY_AFTER_S,
                    code=f"too_many_{self._what.replace(' ', '_')}",
                )
            self._open += 1
        return Admission(self)
