"""Where the index of a folder is kept, and who may write it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import platformdirs

APP_NAME = "ferrum-local"
DIRECTORY = ".ferrum-search"
_POLL_S = 0.2


def index_directory(root: Path) -> Path:
    """Where the index of ``root`` is kept; made if need be.

    In the folder itself, or, if nothing can be written there, in the user's cache.

    :raises OSError: nothing can be written anywhere.
    """
    beside = root / DIRECTORY
    try:
        _make(beside)
        return beside
    except OSError:
        path = os.path.normcase(root.resolve())
        name = f"{root.resolve().name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
        cached = platformdirs.user_cache_path(APP_NAME, appauthor=False) / "search" / name
        _make(cached)
        return cached


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):  # a folder may be there and closed
        pass
    ignore = directory / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


@contextmanager
def only_writer(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the index for this process.

    :param on_wait: called once if another process holds it; then this waits.
    """
    lock = filelock.FileLock(directory / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        on_wait()
        lock.acquire(poll_interval=_POLL_S)
    try:
        yield
    finally:
        lock.release()
