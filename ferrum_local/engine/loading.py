"""Where models are loaded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def made_on_own_thread(make: Callable[[], T]) -> T:
    """What ``make`` returns or raises; it runs on a thread that ends with it.

    OpenMP's threads stay with the thread that began them, and more of them than cores make all
    of them sleep at barriers.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="load") as thread:
        return thread.submit(make).result()
