"""The keys that open the server: several, each with a name, revoked by a change of their file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import threading
from typing import NamedTuple, TypeAlias

from ferrum_local.http.config import HttpConfig

log = logging.getLogger(__name__)

LAUNCH_KEY_NAME = "launch"  # of --token-file
_NAMED = re.compile(r"([\w.@-]{1,64}):\s+(\S.*)", re.ASCII)
_KEY = re.compile(r"[!-~]{1,512}")

# Tells one state of a file from the next: time of change of content and of inode, size, inode.
_Stamp: TypeAlias = tuple[int, int, int, int]


class Key(NamedTuple):
    """``name`` is for people and logs; it tells nothing of the key."""

    name: str
    key: str


class BadKeyFile(ValueError):
    """What is wrong with a file of keys; its text never holds a key."""


def parse_key_file(data: bytes) -> tuple[Key, ...]:
    """One key on each line, bare or as ``NAME: KEY``; ``#`` starts a comment.

    :raises BadKeyFile: it is not text, a line is no key, or there is none.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadKeyFile("is not UTF-8 text") from None
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        named = _NAMED.fullmatch(line)
        name, key = (named[1], named[2]) if named else (f"line-{number}", line)
        if _KEY.fullmatch(key) is None:
            raise BadKeyFile(f"line {number} is not a key of visible ASCII characters")
        keys.append(Key(name, key))
    if not keys:
        raise BadKeyFile("has no key in it; put one on each line")
    return tuple(keys)


class KeyRing:
    """All keys of one server. The file is looked at with every request and read when it changed.

    A file that is gone or cannot be read opens nothing: taking it away must not leave its keys
    valid. Keys from elsewhere are not touched by that. Safe from any thread.
    """

    def __init__(self, config: HttpConfig) -> None:
        fixed = [Key(f"api-key-{i}", key) for i, key in enumerate(config.api_keys, start=1)]
        if config.launch_key is not None:
            fixed.append(Key(LAUNCH_KEY_NAME, config.launch_key))
        self._fixed = _digests(fixed)
        self._path = config.api_key_file
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._from_file: tuple[tuple[str, bytes], ...] = ()
        self._seen = False

    def name_of(self, given: bytes) -> str | None:
        """Who holds this key; None: nobody. Compares with every key, so that time tells nothing."""
        digest = _digest(given)
        found = None
        for name, known in (*self._fixed, *self._current()):
            if hmac.compare_digest(digest, known):
                found = name
        return found

    def _current(self) -> tuple[tuple[str, bytes], ...]:
        if self._path is None:
            return ()
        with self._lock:
            stamp = _stamp_of(self._path)
            if stamp != self._stamp or not self._seen:
                self._read_again(self._path, stamp)
            return self._from_file

    def _read_again(self, path: str, stamp: _Stamp | None) -> None:
        is_first, self._seen = not self._seen, True
        self._stamp = stamp
        try:
            with open(path, "rb") as file:
                keys = parse_key_file(file.read())
        except (OSError, BadKeyFile) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.error("--api-key-file: %s: %s; no key of it is valid until that is mended", path,
                      reason)  # fmt: skip
            self._from_file = ()
            return
        self._from_file = _digests(keys)
        if not is_first:
            log.info(
                "%s was read again; its keys are now %s", path, ", ".join(k.name for k in keys)
            )


def _stamp_of(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def _digests(keys: list[Key] | tuple[Key, ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((key.name, _digest(key.key.encode())) for key in keys)


def _digest(key: bytes) -> bytes:
    """Of one length whatever the key's is, so that comparing takes the same time."""
    return hashlib.sha256(key).digest()
