"""Kinds of option values: how each is read from text or TOML, and what is expected of it."""

from __future__ import annotations

import math
import re
from typing import Protocol, TypeAlias

import msgspec

from ferrum_local.durations import parse_duration_s, parse_keep_alive_s

Raw: TypeAlias = str | int | float | bool
Value: TypeAlias = str | int | float | bool | None | tuple[str, ...]

# Part of a pattern: an IPv6 address, with or without brackets and zone.
IPV6 = r"\[?[0-9a-fA-F]*(?::[0-9a-fA-F.]*){2,8}(?:%[\w.-]+)?\]?"


class Kind(Protocol):
    """A type of value. ``parse`` raises ValueError; ``expected`` then completes the message."""

    @property
    def metavar(self) -> str: ...

    @property
    def expected(self) -> str: ...

    @property
    def none_word(self) -> str | None:
        """The word that stands for None, if the value may be None."""
        ...

    def parse(self, raw: Raw) -> Value: ...


class Integer(msgspec.Struct, frozen=True):
    """A whole number within bounds, or ``none_word``."""

    minimum: int
    maximum: int
    none_word: str | None = None
    metavar: str = "N"

    @property
    def expected(self) -> str:
        text = f"a whole number from {self.minimum} to {self.maximum}"
        return f"{text}, or {self.none_word}" if self.none_word else text

    def parse(self, raw: Raw) -> Value:
        if isinstance(raw, str):
            text = raw.strip().lower()
            if self.none_word and text == self.none_word:
                return None
            if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
                raise ValueError
            raw = int(text)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError
        if not self.minimum <= raw <= self.maximum:
            raise ValueError
        return raw


class Duration(msgspec.Struct, frozen=True):
    """Seconds as a number, or text like ``90``, ``2m``, ``1h30m``, ``500ms``.

    With ``none_word``, that word and 0 mean None: no limit.
    """

    minimum_s: float = 0.0
    maximum_s: float = 7 * 86_400.0
    none_word: str | None = None
    metavar: str = "TIME"

    @property
    def expected(self) -> str:
        text = "seconds, or a time like 90, 2m or 1h30m"
        if self.minimum_s > 0:
            text += f", of at least {self.minimum_s:g} s"
        text += f" and at most {self.maximum_s:g} s"
        return f"{text} (0 or {self.none_word}: no limit)" if self.none_word else text

    def parse(self, raw: Raw) -> Value:
        if isinstance(raw, bool):
            raise ValueError
        seconds = self._seconds(raw) if isinstance(raw, str) else float(raw)
        if seconds is None or (self.none_word is not None and seconds == 0):
            return None
        if not self.minimum_s <= seconds <= self.maximum_s:
            raise ValueError
        return seconds

    def _seconds(self, raw: str) -> float | None:
        if self.none_word and raw.strip().lower() == self.none_word:
            return None
        return parse_duration_s(raw)


class KeepAlive(msgspec.Struct, frozen=True):
    """How long a model stays loaded; negative is for ever, and is -1 then."""

    none_word: str | None = None
    metavar: str = "TIME"

    @property
    def expected(self) -> str:
        return "seconds, a time like 5m or 1h30m, 0 (at once) or -1 (for ever)"

    def parse(self, raw: Raw) -> Value:
        if isinstance(raw, bool):
            raise ValueError
        if isinstance(raw, str) and self.none_word and raw.strip().lower() == self.none_word:
            return None
        seconds = parse_keep_alive_s(raw)
        return -1.0 if seconds == math.inf else seconds


class Choice(msgspec.Struct, frozen=True):
    """One word of a few, in any case; ``none_word`` is one more that means None."""

    words: tuple[str, ...]
    none_word: str | None = None

    @property
    def _all(self) -> tuple[str, ...]:
        return (*self.words, self.none_word) if self.none_word else self.words

    @property
    def metavar(self) -> str:
        return "|".join(self._all)

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self._all)

    def parse(self, raw: Raw) -> Value:
        if isinstance(raw, bool):  # how TOML would naturally say on and off
            raw = "on" if raw else "off"
        text = str(raw).strip().lower()
        if text not in self._all:
            raise ValueError
        return None if text == self.none_word else text


class Switch(msgspec.Struct, frozen=True):
    """True or false."""

    metavar: str = ""
    expected: str = "true or false (or 1, 0, yes, no)"
    none_word: str | None = None

    def parse(self, raw: Raw) -> Value:
        if isinstance(raw, bool):
            return raw
        word = str(raw).strip().lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off"):
            return False
        raise ValueError


class Text(msgspec.Struct, frozen=True):
    """Text that matches ``pattern`` as a whole; blanks around it do not count."""

    metavar: str
    expected: str
    pattern: str = r"(?s).+"
    none_word: str | None = None
    lower: bool = False

    def parse(self, raw: Raw) -> Value:
        if not isinstance(raw, str):
            raise ValueError
        text = raw.strip()
        if self.lower:
            text = text.lower()
        if self.none_word and text.lower() == self.none_word:
            return None
        if not re.fullmatch(self.pattern, text):
            raise ValueError
        return text


def to_toml(value: Value, none_word: str | None = None) -> str:
    """``value`` as TOML, so that what is printed can be saved as a configuration file."""
    if value is None:
        return _toml_text(none_word or "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_text(item) for item in value) + "]"
    if isinstance(value, str):
        return _toml_text(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return repr(value)


def _toml_text(text: str) -> str:
    return '"' + "".join(_toml_character(c) for c in text) + '"'


def _toml_character(c: str) -> str:
    if c in '\\"':
        return "\\" + c
    if c.isprintable():
        return c
    if "\ud800" <= c <= "\udfff":  # a byte of a file name that is not UTF-8: TOML cannot hold it
        return "\ufffd"
    return f"\\U{ord(c):08x}"
