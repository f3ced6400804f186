"""Token ids to text, one token at a time, never with half a character in it.

Tokens are byte strings that may begin or end inside a character. What is incomplete
waits for the next token; what can never become a character is U+FFFD at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_CONTINUATION = range(0x80, 0xC0)
# After these first bytes only some continuation bytes are well-formed (the others would be
# overlong, a surrogate or beyond U+10FFFF): the Unicode Standard, table 3-7.
_SECOND_BYTES = {
    0xE0: range(0xA0, 0xC0),
    0xED: range(0x80, 0xA0),
    0xF0: range(0x90, 0xC0),
    0xF4: range(0x80, 0x90),
}


class CharSpan(NamedTuple):
    """The characters, counted from the start of the text, that a token has bytes in.

    ``end`` is exclusive. A token whose bytes end inside a character counts that
    character as its own although it is not decoded yet.
    """

    start: int
    end: int


class Detokenizer:
    """Incremental UTF-8 decoder of one sequence.

    The joined results of ``feed`` are ``joined_bytes.decode("utf-8", "replace")``, less
    the one U+FFFD that this gives for a character still incomplete at the end. So there
    is nothing to flush: a character that generation cut in half is left out.

    :param token_to_bytes: the raw bytes of a token; empty for one that prints nothing.
    """

    def __init__(self, token_to_bytes: Callable[[int], bytes]) -> None:
        self._token_to_bytes = token_to_bytes
        # Python's incremental decoder would also hold back the start of a surrogate, which
        # can never become a character, so the unfinished bytes are found and kept here.
        self._partial = b""
        self._n_chars = 0
        self._last_span = CharSpan(0, 0)

    @property
    def last_span(self) -> CharSpan:
        """The characters that the token fed last has bytes in.

        For a token without bytes: the place where it stands, which is an empty span
        between two characters, or the span of the character that is unfinished there.
        """
        return self._last_span

    def feed(self, token_id: int) -> str:
        """Return the characters that this token completes, possibly none."""
        data = self._token_to_bytes(token_id)
        start = self._n_chars
        if self._partial and data and not _may_follow(self._partial, data[0]):
            start += 1  # the waiting bytes become a U+FFFD of their own
        data = self._partial + data
        n_complete = len(data) - _n_partial(data)
        self._partial = data[n_complete:]
        text = data[:n_complete].decode("utf-8", errors="replace")
        self._n_chars += len(text)
        # Waiting bytes always become exactly one character: the one that they begin, or U+FFFD.
        end = self._n_chars + (1 if self._partial else 0)
        self._last_span = CharSpan(start, end)
        return text


def _n_partial(data: bytes) -> int:
    """How many bytes at the end of ``data`` begin a character and do not finish it."""
    for n in range(1, min(3, len(data)) + 1):
        first = data[-n]
        if first not in _CONTINUATION:
            begun = data[-n:]
            well_formed = n == 1 or _may_follow(begun[:1], begun[1])
            return n if n < _n_bytes_of_char(first) and well_formed else 0
    return 0


def _n_bytes_of_char(first: int) -> int:
    """Length of the character that starts with this byte; 0: no character does."""
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        return 2
    if 0xE0 <= first <= 0xEF:
        return 3
    return 4 if 0xF0 <= first <= 0xF4 else 0


def _may_follow(partial: bytes, byte: int) -> bool:
    """Whether ``byte`` carries on the character that ``partial`` begins."""
    if len(partial) == 1:
        return byte in _SECOND_BYTES.get(partial[0], _CONTINUATION)
    return byte in _CONTINUATION
