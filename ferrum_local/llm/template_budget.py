"""What a chat template may use while it renders: steps, processor time and text.

Templates come out of model files, so they are programs from strangers. Jinja's sandbox
keeps them from reaching Python; this keeps them from hanging a thread or eating memory.

Bounded: loop rounds and calls, processor time, each string or list that a template builds,
all of them together, numbers that set a width, a count or a power, and the size of nested
values turned into text. Time is looked at between steps; one built-in operation on values
of the allowed sizes runs to its end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

MAX_TEXT_CHARS = 16 * 2**20  # the rendered prompt, or any one value built on the way
MAX_TOTAL_CHARS = 16 * MAX_TEXT_CHARS  # everything built in one render together
MAX_STEPS = 1_000_000  # loop rounds, calls, filter uses, nested values written out
MAX_CPU_S = 5.0
MAX_NUMBER = 100_000  # an argument that sets a width, a count or a precision
MAX_INT_BITS = 4096

_STEPS_BETWEEN_CLOCK_READS = 256
_ITEM_CHARS = 8  # what a list entry counts for, beside the text in it
_LONG_NUMBER = re.compile(r"\d{6,}")
_WIDTH_FROM_ARGUMENT = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")


class BudgetExceeded(Exception):
    """The template wanted more than one render may use; says what."""


class Budget:
    """What is left for one render. Used by one thread."""

    def __init__(self) -> None:
        self._steps_left = MAX_STEPS
        self._chars_left = MAX_TOTAL_CHARS
        self._deadline_s = time.thread_time() + MAX_CPU_S

    def step(self) -> None:
        """Count one loop round or call."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise BudgetExceeded(f"it needs more than {MAX_STEPS} steps")
        if (
            self._steps_left % _STEPS_BETWEEN_CLOCK_READS == 0
            and time.thread_time() > self._deadline_s
        ):
            raise BudgetExceeded(f"it needs more than {MAX_CPU_S:g} seconds")

    def spend(self, n_chars: int) -> None:
        """Count a value of ``n_chars`` that is built or about to be."""
        self._chars_left -= n_chars
        if n_chars > MAX_TEXT_CHARS:
            raise BudgetExceeded(f"it builds a value of more than {MAX_TEXT_CHARS} characters")
        if self._chars_left < 0:
            raise BudgetExceeded(f"it builds more than {MAX_TOTAL_CHARS} characters in all")

    def spend_on(self, value: object) -> None:
        """Count a value by its own length, without looking into it."""
        if isinstance(value, (str, bytes)):
            self.spend(len(value))
        elif isinstance(value, (list, tuple, dict, set)):
            self.spend(len(value) * _ITEM_CHARS)

    def spend_on_text_of(self, value: object) -> None:
        """Count what ``value`` is as text. A list that holds itself many times over is
        small in memory but not on paper, so nested values are walked."""
        waiting = [value]
        while waiting:
            entry = waiting.pop()
            if isinstance(entry, str):
                self.spend(len(entry))
            elif isinstance(entry, Mapping):
                self.step()
                self.spend(len(entry) * _ITEM_CHARS)
                waiting.extend(entry.keys())
                waiting.extend(entry.values())
            elif isinstance(entry, (list, tuple, set)):
                self.step()
                self.spend(len(entry) * _ITEM_CHARS)
                waiting.extend(entry)

    def check_numbers(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Refuse numbers with which a small call asks for a huge result."""
        for argument in (*arguments, *named.values()):
            if isinstance(argument, (int, float)) and abs(argument) > MAX_NUMBER:
                raise BudgetExceeded(f"it uses a number above {MAX_NUMBER} as a size")

    def spend_on_operator(self, operator: str, left: object, right: object) -> None:
        """Count the result of ``left operator right`` before it is computed."""
        if operator == "%":
            if isinstance(left, str):
                self.spend_on_format(left, right)
        elif operator == "+":
            if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                unit = 1 if isinstance(left, str) else _ITEM_CHARS
                self.spend((len(left) + len(right)) * unit)
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                    unit = 1 if isinstance(sequence, str) else _ITEM_CHARS
                    self.spend(len(sequence) * max(times, 0) * unit)
            if isinstance(left, int) and isinstance(right, int):
                _check_int_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_int_bits(left.bit_length() * abs(right))

    def spend_on_format(self, pattern: str, arguments: object) -> None:
        """Count what ``pattern % arguments`` or ``pattern.format(arguments)`` may give."""
        if _LONG_NUMBER.search(pattern) or _WIDTH_FROM_ARGUMENT.search(pattern):
            raise BudgetExceeded("it formats text to a width that is too large or unknown")
        before = self._chars_left
        self.spend_on_text_of(arguments)
        n_fields = pattern.count("%") + pattern.count("{")
        self.spend(len(pattern) + n_fields * (before - self._chars_left))

    def spend_on_join(self, separator: str, items: list[Any]) -> None:
        """Count what joining ``items`` gives."""
        self.spend_on_text_of(items)
        self.spend(len(separator) * len(items))

    def spend_on_replace(self, text: str, old: str, new: str) -> None:
        """Count what replacing ``old`` by ``new`` gives."""
        n_places = text.count(old) if old else len(text) + 1
        self.spend(len(text) + n_places * len(new))


def _check_int_bits(n_bits: int) -> None:
    if n_bits > MAX_INT_BITS:
        raise BudgetExceeded("it computes a number that is too large")
