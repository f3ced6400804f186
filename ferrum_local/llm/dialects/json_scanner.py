"""Checks JSON text that arrives in pieces, character by character."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ferrum_local.llm.dialects.reader import SPACE, Reader, Reading

MAX_DEPTH = 200  # json.loads of what passed here must not exhaust Python's stack

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARS = "+-.eE0123456789"
_HEX = "0123456789abcdefABCDEF"
_WORDS = ("true", "false", "null")


class JsonScanner:
    """A pushdown automaton over one JSON value.

    A raw control character in a string, such as a newline, is not JSON, but models write it:
    it is escaped. Everything else that is not JSON sets ``failed``.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._open: list[str] = []
        self._state = "value"
        self._token = ""  # the number or word that is being read
        self._is_key = False

    def feed(self, text: str) -> tuple[int, str]:
        """Read on; returns how much was read and what to give on for it.

        Stops behind the value, or before the first character that breaks it.
        """
        at, out = 0, []
        while at < len(text) and not self.done and not self.failed:
            if self._state == "string" and (plain := _PLAIN.match(text, at)):
                out.append(plain.group())
                at = plain.end()
                continue
            char = text[at]
            n_read = self._step(char)
            if n_read and self._state == "string" and char < " ":
                char = json.dumps(char)[1:-1]
            out.append(char * n_read)
            at += n_read
        return at, "".join(out)

    def _step(self, char: str) -> int:
        """Take one character; 0: it was not read (it ends a number, or breaks the value)."""
        state = self._state
        if state == "string":
            if char == '"':
                self._end_string()
            elif char == "\\":
                self._state = "escape"
        elif state == "escape":
            if char == "u":
                self._state, self._token = "hex", ""
            else:
                self._expect(char in '"\\/bfnrt', "string")
        elif state == "hex":
            self._token += char
            self._expect(char in _HEX, "string" if len(self._token) == 4 else "hex")
        elif state == "number":
            if char in _NUMBER_CHARS:
                self._token += char
            else:
                self._end_number()
                return 0
        elif state == "word":
            self._token += char
            if self._token in _WORDS:
                self._end_value()
            else:
                self._expect(any(word.startswith(self._token) for word in _WORDS), "word")
        elif char not in SPACE:
            self._structure(char)
        return 0 if self.failed else 1

    def _structure(self, char: str) -> None:
        state = self._state
        if char == '"' and state in ("value", "value or end", "key", "key or end"):
            self._is_key = state.startswith("key")
            self._state = "string"
        elif state == "colon":
            self._expect(char == ":", "value")
        elif char in "]}" and state in ("value or end", "key or end", "comma or end"):
            if "[{"["]}".index(char)] == self._open[-1]:
                self._open.pop()
                self._end_value()
            else:
                self.failed = True
        elif state == "comma or end":
            self._expect(char == ",", "key" if self._open[-1] == "{" else "value")
        elif state in ("value", "value or end"):
            self._begin_value(char)
        else:
            self.failed = True

    def _begin_value(self, char: str) -> None:
        self._token = char
        if char in "{[" and len(self._open) < MAX_DEPTH:
            self._open.append(char)
            self._state = "key or end" if char == "{" else "value or end"
        elif char in "-0123456789":
            self._state = "number"
        else:
            self._expect(char in "tfn", "word")

    def _end_string(self) -> None:
        if self._is_key:
            self._is_key = False
            self._state = "colon"
        else:
            self._end_value()

    def _end_number(self) -> None:
        if _NUMBER.fullmatch(self._token):
            self._end_value()
        else:
            self.failed = True

    def _end_value(self) -> None:
        self._state = "comma or end"
        self.done = not self._open

    def _expect(self, right: bool, state: str) -> None:
        self._state = state
        self.failed = not right


def copy_value(
    reader: Reader, give: Callable[[str], None], *, commit: bool = False
) -> Reading[bool]:
    """Read one JSON value, giving it on as it arrives; False: it broke or the text ended.

    :param commit: nothing before it will be read again.
    """
    scanner = JsonScanner()
    while True:
        n_read, piece = scanner.feed(reader.rest())
        reader.pos += n_read
        if commit:
            reader.commit()
        give(piece)
        if scanner.done or scanner.failed:
            return scanner.done
        if not (yield from reader.more()):
            return False


def read_value(reader: Reader) -> Reading[str | None]:
    """The text of one JSON value; None: there is none."""
    pieces: list[str] = []
    return "".join(pieces) if (yield from copy_value(reader, pieces.append)) else None
