"""Percentiles estimated from a histogram's buckets."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.metrics import DURATION_BUCKETS_S, quantile

BOUNDS = (*DURATION_BUCKETS_S, float("inf"))


def cumulative(values: list[float]) -> dict[float, float]:
    return {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}


@given(st.lists(st.floats(0.0001, 600), min_size=1, max_size=50), st.floats(0.01, 1))
def test_an_estimate_lies_in_the_bucket_of_the_true_value(values: list[float], q: float) -> None:
    rank = max(1, -(-q * len(values) // 1))
    true = sorted(values)[int(rank) - 1]
    i = bisect_left(BOUNDS, true)
    lower = BOUNDS[i - 1] if i else 0.0
    assert lower <= quantile(q, cumulative(values)) <= BOUNDS[i]


def test_no_observations_and_slower_than_the_last_bucket() -> None:
    assert quantile(0.95, {}) == 0
    assert quantile(0.95, cumulative([])) == 0
    assert quantile(0.95, cumulative([10_000.0])) == 600
