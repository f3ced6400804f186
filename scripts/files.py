"""Locks between processes, and from the package files that are whole or absent.

Standard library only, Python 3.8 syntax: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Iterator  # noqa: UP035 - Python 3.8

from progress import Progress

# Set-up runs before the package is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ferrum_local.whole_files import replacing, sha256_of

__all__ = ["exclusive", "replacing", "sha256_of"]

LOCK_RETRY_S = 0.2


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[int]:
    """Hold a lock file; wait for another process that holds it, and say so.

    Yields its file descriptor: a child that inherits it holds the lock as well. Windows has no
    such lock in the standard library that survives a crash cleanly, so there it is not taken.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        if os.name == "posix":
            import fcntl

            progress = Progress(f"waiting for {what} to end (lock: {path})")
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    progress.tick()
                    time.sleep(LOCK_RETRY_S)
            progress.close()
        yield handle.fileno()
