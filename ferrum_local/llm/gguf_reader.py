"""Step through the bytes of a GGUF header without believing any length that it claims."""

from __future__ import annotations

import struct
from typing import BinaryIO

MAX_HEADER_BYTES = 512 << 20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_WINDOW_BYTES = 1 << 20


class BadFile(Exception):
    """What is wrong with the file, to be prefixed with its path."""


class GgufReader:
    """A forward reader over a window of the file, which knows what is left to read."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._window = b""
        self._start = 0  # file offset of the window
        self._at = 0  # position inside it; beyond its end after a long skip

    @property
    def position(self) -> int:
        return self._start + self._at

    @property
    def left(self) -> int:
        return self._size - self.position

    def _fill(self, n: int) -> None:
        """Make ``n`` bytes available at the current position."""
        if n > self.left:
            raise BadFile(
                f"is cut short: its header ends in the middle, at byte {self._size:,}. "
                "The download was probably interrupted; fetch it again"
            )
        if self._at + n <= len(self._window):
            return
        if self.position > MAX_HEADER_BYTES:
            raise BadFile(
                f"is damaged or hostile: its header is beyond {MAX_HEADER_BYTES >> 20} MiB"
            )
        self._start, self._at = self.position, 0
        self._file.seek(self._start)
        wanted = min(max(n, _WINDOW_BYTES), self._size - self._start)
        parts = []
        while wanted > 0:  # an unbuffered read may return less than was asked
            part = self._file.read(wanted)
            if not part:
                raise BadFile("became shorter while it was read")
            parts.append(part)
            wanted -= len(part)
        self._window = b"".join(parts)

    def peek(self, n: int) -> bytes:
        n = min(n, self.left)
        self._fill(n)
        return self._window[self._at : self._at + n]

    def take(self, n: int) -> bytes:
        self._fill(n)
        self._at += n
        return self._window[self._at - n : self._at]

    def skip(self, n: int) -> None:
        self._at += n

    def scalar(self, layout: struct.Struct) -> bool | int | float:
        value: bool | int | float = layout.unpack(self.take(layout.size))[0]
        return value

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def count(self, what: str, limit: int, *, least_bytes: int) -> int:
        n = self.u64()
        if n > limit or n * least_bytes > self._size:
            raise BadFile(f"is damaged: it claims {n:,} {what}")
        return n

    def length(self, what: str, *, element_bytes: int = 1) -> int:
        """A count of elements, refused when the file cannot hold that many."""
        n = self.u64()
        if n * element_bytes > self.left:
            raise BadFile(f"is damaged or cut short: {what} reaches beyond the end of the file")
        return n

    def string(self, what: str, limit: int) -> str:
        n = self.length(what)
        if n > limit:
            raise BadFile(f"is damaged: {what} is {n:,} bytes long")
        return self.take(n).decode("utf-8", "replace")

    def skip_strings(self, n: int, what: str) -> None:
        """Step over ``n`` strings; the loop is kept tight for vocabularies of 262k tokens."""
        unpack = _U64.unpack_from
        while n:
            self._fill(8)
            window, at = self._window, self._at
            last = len(window) - 8
            while n and at <= last:
                at += 8 + unpack(window, at)[0]
                n -= 1
            self._at = at
            if self.left < 0:
                raise BadFile(f"is damaged or cut short: {what} reaches beyond the end of the file")


def quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
