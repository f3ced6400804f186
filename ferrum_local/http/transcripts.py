"""What was said lately, as text: spoken answers, and recordings that clients send again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

LIFETIME_S = 3600.0
MAX_CHARS = 4 * 1024 * 1024  # of all together


class TranscriptStore:
    """Texts by id, for an hour; when there are too many the oldest go first. Thread-safe.

    :param clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        lifetime_s: float = LIFETIME_S,
        max_chars: int = MAX_CHARS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._lifetime_s = lifetime_s
        self._max_chars = max_chars
        self._clock = clock
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, tuple[str, float]] = OrderedDict()  # and when it expires
        self._n_chars = 0

    def put(self, id_: str, text: str) -> int:
        """:returns: when it will be forgotten, in whole seconds since the epoch."""
        expires_at = self._clock() + self._lifetime_s
        with self._lock:
            self._remove(id_)
            self._texts[id_] = (text, expires_at)
            self._n_chars += _size(id_, text)
            while self._n_chars > self._max_chars:
                self._remove(next(iter(self._texts)))
        return int(expires_at)

    def get(self, id_: str) -> str | None:
        with self._lock:
            text, expires_at = self._texts.get(id_, (None, 0.0))
            if text is not None and expires_at <= self._clock():
                self._remove(id_)
                return None
            return text

    def _remove(self, id_: str) -> None:
        text, _ = self._texts.pop(id_, (None, 0.0))
        if text is not None:
            self._n_chars -= _size(id_, text)


def _size(id_: str, text: str) -> int:
    """In characters; an id counts, too, so that empty texts are not for free."""
    return len(id_) + len(text)
