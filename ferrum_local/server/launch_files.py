"""Small files that belong to one launch of the server: for their owner only, gone when it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from ferrum_local.errors import ConfigError

log = logging.getLogger("ferrum_local.server")

KEY_PREFIX = "fl-"
_MAX_BYTES = 65_536  # what we write is far smaller; a larger file is somebody's


class LaunchFile:
    """One such file, written whole: readers see all of it or no file.

    What an earlier launch left at ``path`` is replaced; anything else there is left alone.

    :param flag: the option that names it, for error messages.
    :param is_ours: whether bytes found there are what we write.
    :raises ConfigError: it cannot be written there, or would replace somebody's file.
    """

    def __init__(self, path: str, *, flag: str, is_ours: Callable[[bytes], bool]) -> None:
        self._path = Path(os.path.abspath(os.path.expanduser(path)))
        self._where = f"{flag}: {path}"
        self._identity: tuple[int, int] | None = None
        directory = self._path.parent
        if not directory.is_dir():
            raise ConfigError(f"{self._where}: there is no directory {directory}")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(f"{self._where}: {directory} cannot be written to")
        self._check(is_ours)

    def clear(self) -> None:
        """Remove what an earlier launch left."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def write(self, data: bytes) -> None:
        """Put ``data`` there in one step.

        :raises ConfigError: with what the disk has to say.
        """
        import tempfile  # here and below: not every launch has such files, and each would wait

        try:
            # mkstemp makes it 0600, whatever the umask is.
            fd, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    status = os.fstat(file.fileno())
                os.replace(temporary, self._path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as exc:
            raise ConfigError(f"{self._where}: cannot be written ({exc.strerror})") from exc
        self._identity = (status.st_dev, status.st_ino)

    def remove(self) -> None:
        """Take it away, unless somebody has put another file there since."""
        if self._identity is None:
            return
        identity, self._identity = self._identity, None
        try:
            status = os.lstat(self._path)
            if (status.st_dev, status.st_ino) == identity:
                os.unlink(self._path)
        except OSError as exc:
            log.debug("%s: %s", self._path, exc)

    def _check(self, is_ours: Callable[[bytes], bool]) -> None:
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{self._where}: there is something that is not a file")
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            # Programs often make an empty file first, to have a name for it.
            if content and (len(content) > _MAX_BYTES or not is_ours(content)):
                raise ConfigError(
                    f"{self._where}: this file was not written by ferrum-local and is not replaced"
                )
        except OSError as exc:
            raise ConfigError(f"{self._where}: cannot be replaced ({exc.strerror})") from None


def _is_launch_key(data: bytes) -> bool:
    return data.startswith(KEY_PREFIX.encode()) and data.strip().count(b"\n") == 0


@contextlib.contextmanager
def launch_key(path: str) -> Iterator[str]:
    """A fresh random key, in the file at ``path`` for as long as the block lasts.

    :raises ConfigError: as :class:`LaunchFile`.
    """
    import secrets

    file = LaunchFile(path, flag="--token-file", is_ours=_is_launch_key)
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    file.write(key.encode() + b"\n")
    try:
        yield key
    finally:
        file.remove()
