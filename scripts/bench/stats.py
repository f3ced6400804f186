"""The few statistics that the benchmark needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest rank: one of the values itself, so that a small sample does not hide its worst.

    :param percent: above 0, up to 100.
    :raises ValueError: without values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def gaps(times_s: Sequence[float]) -> list[float]:
    """Time between neighbours: one value fewer than ``times_s``."""
    return [later - earlier for earlier, later in zip(times_s, times_s[1:], strict=False)]


def decode_rate(times_s: Sequence[float], n_tokens: int) -> float:
    """Tokens a second between the first and the last token.

    :param times_s: when text came; several tokens may have come at one time.
    :param n_tokens: tokens in all; the first one is the prompt's, so it does not count.
    :raises ValueError: when fewer than two tokens came.
    """
    if len(times_s) < 2 or n_tokens < 2:
        raise ValueError("a rate needs two tokens at least")
    return (n_tokens - 1) / (times_s[-1] - times_s[0])
