"""``--single-instance``: one such server for each data directory, and who it is.

The lock is the system's, so it ends with the process that holds it, however that ends. Beside
it lies a note with the pid and the address, which is only believed while the lock is held.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ferrum_local.errors import ConfigError, FerrumError

log = logging.getLogger("ferrum_local.server")

LOCK_NAME = "server.lock"
NOTE_NAME = "server.json"


class AlreadyRunning(FerrumError):
    """Another server holds the directory."""

    code = "already_running"


class Note(msgspec.Struct, frozen=True):
    """Who holds the lock. ``url`` is what ``ready`` names."""

    pid: int
    url: str


class Instance:
    """A held lock."""

    def __init__(self, directory: Path) -> None:
        self._note = directory / NOTE_NAME

    def tell(self, url: str) -> None:
        """Write down where this server can be reached. Whoever cannot read it learns the rest."""
        temporary = self._note.with_name(f".{NOTE_NAME}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.encode(Note(pid=os.getpid(), url=url)))
            os.replace(temporary, self._note)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._note, error)

    def forget(self) -> None:
        with suppress(OSError):
            self._note.unlink()


@contextmanager
def single_instance(directory: str) -> Iterator[Instance]:
    """Hold the lock of ``directory``, which is made if it is not there, within the block.

    :raises AlreadyRunning: another server has it; the message names its pid and address.
    :raises ConfigError: the directory cannot be used.
    """
    import filelock  # not at the top: as slow to import as half of the command line

    place = Path(directory)
    lock = filelock.FileLock(place / LOCK_NAME, blocking=False, mode=0o600)
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise AlreadyRunning(_who_runs(place)) from None
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--single-instance: {place / LOCK_NAME} cannot be locked ({reason})"
        ) from None
    instance = Instance(place)
    try:
        yield instance
    finally:
        instance.forget()
        lock.release()


def _who_runs(place: Path) -> str:
    advice = f"Use that one, stop it, or give this one a --data-dir of its own ({place} is taken)."
    try:
        note = msgspec.json.decode((place / NOTE_NAME).read_bytes(), type=Note)
    except (OSError, msgspec.DecodeError):  # it has just started
        return f"Another server is starting. {advice}"
    return f"A server runs already: pid {note.pid}, {note.url}. {advice}"
