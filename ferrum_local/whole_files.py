"""Files that appear whole or not at all, and their hashes.

Standard library only, Python 3.8 syntax: set-up uses it before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import IO, Iterator  # noqa: UP035 - Python 3.8


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path: Path, *, shared: bool = False, make_dirs: bool = True) -> Iterator[IO[bytes]]:
    """Write a file that appears whole and flushed to disk, or not at all.

    What a killed process left behind is overwritten the next time.

    :param shared: several may write it at once; the last one wins.
    :param make_dirs: also the directories above it.
    """
    if make_dirs:
        path.parent.mkdir(parents=True, exist_ok=True)
    writer = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    part = path.with_name(f".{path.name}{writer}.part")
    try:
        with part.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
