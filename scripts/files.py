"""Files that are whole or absent, their hashes, and locks between processes.

Standard library only, Python 3.8 syntax: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import IO, Iterator  # noqa: UP035 - Python 3.8

from progress import Progress

LOCK_RETRY_S = 0.2


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears whole and flushed to disk, or not at all.

    What a killed process left behind is overwritten the next time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


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
