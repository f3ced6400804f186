"""KV states of evicted prefixes, in host memory and, if asked for, on disk.

A slot's state is a few kilobytes a token and is copied in milliseconds, where evaluating
the tokens again takes seconds. Both stores are bounded; the least recently used goes first.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ferrum_local.llm.prefix_tree import Match, PrefixTree

logger = logging.getLogger(__name__)

State: TypeAlias = bytes | memoryview

# Shorter prefixes are evaluated again faster than they are worth keeping.
MIN_CACHED_TOKENS = 64
_MAGIC = b"FERRUMKV1\n"
_SUFFIX = ".kv"


class CachedPrefix(NamedTuple):
    """A state that holds ``n_shared`` leading tokens of what was asked for."""

    n_shared: int
    tokens: list[int]
    state: State


class PromptCache:
    """Prefix → KV state. Used by the decode thread alone.

    :param max_bytes: bound of the states in memory; 0 keeps none.
    :param disk: a second store that survives restarts.
    :param max_cut_tokens: a state of more tokens than this can only be used as a whole: 0 for
        recurrent memory, the window for a sliding one; None where any can be cut back.
    """

    def __init__(
        self, max_bytes: int, disk: DiskCache | None = None, *, max_cut_tokens: int | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._max_cut_tokens = max_cut_tokens
        self._disk = disk
        self._tree = PrefixTree()
        self._states: collections.OrderedDict[int, State | None] = collections.OrderedDict()
        self._next_key = 0
        self.n_bytes = 0
        if disk is not None:
            for tokens in disk.index():
                self._add(tokens, None)

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0 or self._disk is not None

    @property
    def survives_restart(self) -> bool:
        return self._disk is not None

    def has_room_for(self, n_bytes: int) -> bool:
        """Whether a state of this size would be kept at all."""
        return n_bytes <= self._max_bytes or self._disk is not None

    def shared_length(self, tokens: Sequence[int]) -> int:
        """How many leading tokens can be taken from some cached state."""
        return self._best(tokens).n_tokens

    def find(self, tokens: Sequence[int], min_shared: int) -> CachedPrefix | None:
        """The state that shares most with ``tokens``, if it shares at least ``min_shared``."""
        while True:
            match = self._best(tokens)
            if not match.slots or match.n_tokens < min_shared:
                return None
            # Of several the shortest: least to copy.
            key = min(match.slots, key=self._tree.length)
            held = self._tree.tokens(key)
            state = self._states[key]
            if state is None and self._disk is not None:
                state = self._disk.read(held)
            if state is not None:
                self._states.move_to_end(key)
                return CachedPrefix(match.n_tokens, held, state)
            self._drop(key)  # the file is gone or broken

    def store(self, tokens: Sequence[int], state: State) -> None:
        """Keep a state, unless one that covers it is there; drop the states it covers."""
        if self._best(tokens).n_tokens == len(tokens):
            return
        if self._can_cut(len(tokens)):
            for key in [k for k in self._states if self._is_covered(k, tokens)]:
                self._drop(key)
        on_disk = self._disk is not None and self._disk.write(tokens, state)
        if len(state) <= self._max_bytes:
            self._add(tokens, state)
        elif on_disk:
            self._add(tokens, None)
        self._shrink()

    def _can_cut(self, n_tokens: int) -> bool:
        return self._max_cut_tokens is None or n_tokens <= self._max_cut_tokens

    def _best(self, tokens: Sequence[int]) -> Match:
        """The longest prefix that can be taken from a state, and the states that give it."""
        match = self._tree.longest_prefix(tokens)
        usable = frozenset(
            key
            for key in match.slots
            if self._can_cut(n_held := self._tree.length(key)) or n_held == match.n_tokens
        )
        return Match(match.n_tokens, usable) if usable else self._tree.longest_whole(tokens)

    def _is_covered(self, key: int, tokens: Sequence[int]) -> bool:
        n_held = self._tree.length(key)
        return self._tree.shared_length(key, tokens) == n_held

    def _add(self, tokens: Sequence[int], state: State | None) -> None:
        self._next_key += 1
        self._tree.insert(self._next_key, tokens)
        self._states[self._next_key] = state
        self.n_bytes += len(state or b"")

    def _drop(self, key: int) -> None:
        if self._disk is not None:
            self._disk.remove(self._tree.tokens(key))
        self._tree.remove(key)
        self.n_bytes -= len(self._states.pop(key) or b"")

    def _shrink(self) -> None:
        for key, state in list(self._states.items()):
            if self.n_bytes <= self._max_bytes:
                return
            if state is None:
                continue
            if self._disk is not None and self._disk.holds(self._tree.tokens(key)):
                self.n_bytes -= len(state)
                self._states[key] = None
            else:
                self._drop(key)


class DiskCache:
    """Files of one model in a directory, each checked before it is used.

    :param fingerprint: of the model and of everything else that shapes its KV states;
        files of another fingerprint are left alone.
    :param max_bytes: bound of all files together.
    """

    def __init__(self, directory: Path, fingerprint: str, max_bytes: int) -> None:
        self._directory = directory
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def index(self) -> list[list[int]]:
        """Token ids of every usable file, oldest first."""
        found = []
        for path in self._files():
            content = self._load(path)
            if content is None:
                logger.warning("Prompt cache file %s is broken and is ignored.", path.name)
                continue
            found.append(content[0])
        return found

    def _files(self) -> list[Path]:
        paths = self._directory.glob(f"{self._fingerprint}-*{_SUFFIX}")
        return sorted(paths, key=lambda path: path.stat().st_mtime)

    def _path(self, tokens: Sequence[int]) -> Path:
        digest = hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:32]
        return self._directory / f"{self._fingerprint}-{digest}{_SUFFIX}"

    def holds(self, tokens: Sequence[int]) -> bool:
        return self._path(tokens).exists()

    def read(self, tokens: Sequence[int]) -> bytes | None:
        """The state of exactly these tokens; None when the file is missing or broken."""
        path = self._path(tokens)
        content = self._load(path)
        if content is not None:
            with contextlib.suppress(OSError):  # only the order of eviction depends on it
                os.utime(path)
        return content[1] if content is not None and content[0] == list(tokens) else None

    def _load(self, path: Path) -> tuple[list[int], bytes] | None:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        head, _, rest = data.removeprefix(_MAGIC).partition(b"\n")
        try:
            header = json.loads(head)
            tokens, crc, n_bytes = header["tokens"], header["crc32"], header["bytes"]
        except (ValueError, KeyError, TypeError):
            return None
        # The state goes straight into native code, so not a byte of it may be wrong.
        if not data.startswith(_MAGIC) or len(rest) != n_bytes or zlib.crc32(rest) != crc:
            return None
        return tokens, rest

    def write(self, tokens: Sequence[int], state: State) -> bool:
        """Write a file whole or not at all; False, with a log line, when the disk refuses."""
        header = {"tokens": list(tokens), "crc32": zlib.crc32(state), "bytes": len(state)}
        try:
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                try:
                    file.write(_MAGIC + json.dumps(header).encode() + b"\n")
                    file.write(state)
                    file.close()
                    os.replace(file.name, self._path(tokens))
                except OSError:
                    os.unlink(file.name)
                    raise
            self._shrink()
        except OSError as error:
            logger.warning("The prompt cache cannot write to %s: %s", self._directory, error)
            return False
        return self.holds(tokens)

    def remove(self, tokens: Sequence[int]) -> None:
        try:
            self._path(tokens).unlink(missing_ok=True)
        except OSError as error:  # still open elsewhere (Windows), or not ours to remove
            logger.warning("The prompt cache cannot remove a file: %s", error)

    def _shrink(self) -> None:
        files = self._files()
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total <= self._max_bytes:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)
