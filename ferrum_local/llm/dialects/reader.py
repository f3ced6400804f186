"""Text that arrives in pieces, read by straight-line code that waits where it needs more.

The readers of calls are generators: each ``yield`` waits for the next piece. A decision is taken
only where no further text could change it, so the result never depends on where pieces break.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]

SPACE = " \t\r\n"


class Reader:
    """A cursor in growing text; positions count from the beginning of all text."""

    def __init__(self) -> None:
        self._text = ""
        self._base = 0  # position of _text's first character
        self.pos = 0
        self.ended = False

    def feed(self, text: str) -> None:
        self._text += text

    def prepend(self, text: str) -> None:
        """Have ``text`` read before what comes next."""
        self.commit()
        self._text = text + self._text

    def commit(self) -> None:
        """Forget what was read: nothing goes back before the cursor any more."""
        self._text = self._text[self.pos - self._base :]
        self._base = self.pos

    def rest(self, n_chars: int | None = None) -> str:
        """What has arrived after the cursor, ``n_chars`` of it at most."""
        start = self.pos - self._base
        return self._text[start:] if n_chars is None else self._text[start : start + n_chars]

    def between(self, start: int, end: int) -> str:
        return self._text[start - self._base : end - self._base]

    def take(self, n_chars: int) -> str:
        """Read on over text that has arrived."""
        taken = self.rest(n_chars)
        self.pos += len(taken)
        return taken

    def more(self) -> Reading[bool]:
        """Wait until more text arrived than there is now; False: the text ended."""
        n = len(self._text)
        while len(self._text) == n and not self.ended:
            yield
        return len(self._text) > n

    def peek(self) -> Reading[str]:
        """The next character, or an empty string at the end."""
        if not self.rest(1):
            yield from self.more()
        return self.rest(1)

    def match(self, literal: str) -> Reading[bool]:
        """Read over ``literal`` if it comes next."""
        while True:
            there = self.rest(len(literal))
            if there == literal:
                self.pos += len(literal)
                return True
            if not literal.startswith(there) or not (yield from self.more()):
                return False

    def close(self, mark: str) -> Reading[bool]:
        """Read over whitespace and ``mark`` if it comes next, or what there is of it at the end.

        Where something else comes next, the cursor stays.
        """
        start = self.pos
        yield from self.space()
        if (yield from self.match(mark)):
            return True
        if mark.startswith(self.rest()):  # the answer was cut here
            self.pos += len(self.rest())
            return True
        self.pos = start
        return False

    def match_any(self, literals: Sequence[str]) -> Reading[str]:
        """Read over the first of ``literals`` that comes next; an empty string: none does."""
        for literal in literals:
            if (yield from self.match(literal)):
                return literal
        return ""

    def while_in(self, allowed: str | frozenset[str]) -> Reading[str]:
        """The next characters, as long as they are ``allowed``."""
        start = self.pos
        while (char := (yield from self.peek())) and char in allowed:
            self.pos += 1
        return self.between(start, self.pos)

    def space(self) -> Reading[str]:
        return (yield from self.while_in(SPACE))

    def until(
        self,
        marks: Marks,
        give: Callable[[str], None] | None = None,
        *,
        give_begun: bool = True,
    ) -> Reading[str]:
        """Read up to the first of ``marks``, and return which (not read over); empty: the end.

        What comes before goes to ``give`` as it arrives, if there is one.

        :param give_begun: also what was begun of a mark when the text ended.
        """
        while True:
            rest = self.rest()
            found = marks.pattern.search(rest) if marks.texts else None
            n = found.start() if found else len(rest) - marks.n_begun(rest)
            if n and give:
                give(rest[:n])
            self.pos += n
            if give:
                self.commit()
            if found:
                return found.group()
            if not (yield from self.more()):
                if give and give_begun:
                    give(self.rest())
                self.pos += len(self.rest())
                return ""


class Marks:
    """Texts to look for together. None may contain another, or the first one found could be
    inside one that began earlier."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self.pattern = re.compile("|".join(map(re.escape, texts)))
        for text in texts:
            if any(text != other and text in other for other in texts):
                raise ValueError(f"{text!r} is part of another mark")

    def n_begun(self, text: str) -> int:
        """How many of the last characters may become a mark."""
        longest = max(map(len, self.texts), default=0) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(mark.startswith(text[-n:]) for mark in self.texts):
                return n
        return 0
