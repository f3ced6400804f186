"""When a request's time is up, by a clock that nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Limited(Protocol):
    """A request with a time limit; see :class:`ferrum_local.types.InferenceRequest`."""

    @property
    def made_at_s(self) -> float: ...

    @property
    def deadline_s(self) -> float | None: ...


def time_left_s(request: Limited, *, clock: Callable[[], float] = time.monotonic) -> float | None:
    """How long a request may still take, below zero when its time is up; None: no limit.

    :param clock: the one that stamped the request, ``time.monotonic``.
    """
    if request.deadline_s is None:
        return None
    return request.made_at_s + request.deadline_s - clock()
