"""Where models are loaded, and how a request waits for one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from ferrum_local.errors import Cancelled, DeadlineExceeded

T = TypeVar("T")

_LOOK_S = 0.1  # how often one who waits for a model looks whether it is in vain


def made_on_own_thread(make: Callable[[], T]) -> T:
    """What ``make`` returns or raises; it runs on a thread that ends with it.

    OpenMP's threads stay with the thread that began them, and more of them than cores make all
    of them sleep at barriers.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
        return thread.submit(make).result()


class _Waitable(Protocol):
    def wait(self, timeout_s: float) -> bool: ...


class _Releasable(Protocol):
    def release(self) -> None: ...


@contextlib.contextmanager
def released_on_error(lease: _Releasable) -> Iterator[None]:
    """Keep ``lease`` beyond the block, unless that fails."""
    try:
        yield
    except BaseException:
        lease.release()
        raise


def wait_for_model(
    lease: _Waitable,
    *,
    deadline_s: float | None = None,
    is_abandoned: Callable[[], bool] | None = None,
) -> None:
    """Until it is ready.

    :raises FerrumError: it cannot be loaded. DeadlineExceeded: the time is up. Cancelled:
        ``is_abandoned`` said so.
    """
    for _ in waits_for_model(lease, deadline_s=deadline_s, is_abandoned=is_abandoned):
        pass


def waits_for_model(
    lease: _Waitable,
    *,
    deadline_s: float | None = None,
    is_abandoned: Callable[[], bool] | None = None,
) -> Iterator[None]:
    """As ``wait_for_model``, with a turn for the caller several times a second."""
    until_s = None if deadline_s is None else time.monotonic() + deadline_s
    while not lease.wait(_LOOK_S):
        if is_abandoned is not None and is_abandoned():
            raise Cancelled("The client left before the model was loaded.")
        if until_s is not None and time.monotonic() >= until_s:
            raise DeadlineExceeded("The request's time limit passed before the model was loaded.")
        yield
