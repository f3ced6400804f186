"""Lengths of time as people and programs write them: ``90``, ``2m``, ``1h30m``, ``500ms``."""

from __future__ import annotations

import math
import re

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|s|m|h))+")
_DURATION_PART = re.compile(r"([0-9.]+)(ms|s|m|h)")


def parse_duration_s(text: str) -> float:
    """Seconds. A bare number is seconds already.

    :raises ValueError: it is no length of time.
    """
    text = text.replace(" ", "").lower()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"not a length of time: {text[:40]!r}")
    return sum(float(n) * _UNIT_SECONDS[unit] for n, unit in _DURATION_PART.findall(text))


def parse_keep_alive_s(value: str | float) -> float:
    """How long a model stays after its last request, in Ollama's form; infinite for any negative.

    :raises ValueError: it is no length of time.
    """
    if isinstance(value, str):
        text = value.strip()
        negative = text.startswith("-")
        seconds = parse_duration_s(text.removeprefix("-"))
        return math.inf if negative else seconds
    if math.isnan(value):
        raise ValueError("not a length of time: NaN")
    return math.inf if value < 0 else float(value)
