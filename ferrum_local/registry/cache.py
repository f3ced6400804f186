"""Remembers what GGUF headers said: reading a large vocabulary takes a twentieth of a second."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import msgspec

from ferrum_local.registry.facts import ModelFacts
from ferrum_local.whole_files import replacing

logger = logging.getLogger(__name__)

_VERSION = 1  # of what is remembered; another one's memory is forgotten
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")

Stamp = tuple[tuple[int, int], ...]  # size and modification time (ns) of each file


class _Known(msgspec.Struct, frozen=True):
    stamp: Stamp
    facts: ModelFacts


class _Memory(msgspec.Struct):
    version: int = _VERSION
    models: dict[str, _Known] = {}


class FactsCache:
    """Facts by path, as long as size and time of the files stay the same.

    :param path: where they outlive the process; None: nowhere. What is damaged there, or cannot
        be written, costs time and nothing else.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._memory = _load(path)
        self._changed = False

    def get(self, path: str) -> ModelFacts | None:
        known = self._memory.models.get(path)
        if known is None or known.stamp != _stamp(path):
            return None
        return known.facts

    def put(self, facts: ModelFacts) -> None:
        """A fault is not remembered: what it is about may lie outside the model's own files.

        Nor is a path that JSON cannot hold.
        """
        stamp = _stamp(facts.path)
        if facts.fault is None and stamp is not None and _is_unicode(facts.path):
            self._memory.models[facts.path] = _Known(stamp, facts)
            self._changed = True

    def save(self) -> None:
        """Write what was learnt since, without the files that are gone."""
        if self._path is None or not self._changed:
            return
        self._changed = False
        models = {p: k for p, k in list(self._memory.models.items()) if os.path.exists(p)}
        try:
            with replacing(self._path, shared=True) as file:
                file.write(msgspec.json.encode(_Memory(models=models)))
        except OSError as error:
            logger.debug("%s: cannot be written: %s", self._path, error)


def _load(path: Path | None) -> _Memory:
    if path is None:
        return _Memory()
    try:
        memory = msgspec.json.decode(path.read_bytes(), type=_Memory)
    except FileNotFoundError:
        return _Memory()
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        logger.debug("%s: cannot be used: %s", path, error)
        return _Memory()
    return memory if memory.version == _VERSION else _Memory()


def _is_unicode(path: str) -> bool:
    """Not with bytes of a file name that are no UTF-8, which Python keeps as lone surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stamp(path: str) -> Stamp | None:
    """Of all parts of a model; None: one is missing."""
    found = _PART.search(path)
    paths = [path]
    if found is not None:
        stem = path[: found.start()]
        paths = [f"{stem}-{i:05d}-of-{found[1]}.gguf" for i in range(1, int(found[1]) + 1)]
    try:
        return tuple((info.st_size, info.st_mtime_ns) for info in map(os.stat, paths))
    except OSError:
        return None
