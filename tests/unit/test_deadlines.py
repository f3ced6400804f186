"""Time limits hold whatever becomes of the wall clock."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.deadlines import time_left_s
from ferrum_local.types import EmbeddingRequest, InferenceRequest
from ferrum_local.vectors import EarlyEnd, Ends

seconds = st.floats(0, 1e6)
epochs = st.floats(0, 4e9)


@given(
    start_s=seconds,
    limit_s=st.floats(0.001, 1e5),
    steps=st.lists(st.tuples(st.floats(0, 1e4), epochs), max_size=8),
    created_at=epochs,
)
def test_life_a_limit_counts_seconds_that_passed_not_what_the_clock_on_the_wall_says(
    start_s: float, limit_s: float, steps: list[tuple[float, float]], created_at: float
) -> None:
    """Each step passes some time and sets the wall clock to any other moment."""
    now_s, wall_s = [start_s], [created_at]
    request = EmbeddingRequest(
        id="e", model_id="m", inputs=("x",), created_at=created_at, made_at_s=start_s,
        deadline_s=limit_s,
    )  # fmt: skip
    end = EarlyEnd(request, Ends(), clock=lambda: now_s[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: wall_s[0])
        for passed_s, set_to_s in steps:
            now_s[0] += passed_s
            wall_s[0] = set_to_s
            left_s = time_left_s(request, clock=lambda: now_s[0])
            assert left_s == start_s + limit_s - now_s[0]
            assert (end.reason() is not None) == (left_s < 0)


def test_a_request_is_stamped_when_it_is_made_and_without_a_limit_has_no_end() -> None:
    before = time.monotonic()
    request = InferenceRequest(id="i", model_id="m", prompt="x", deadline_s=60.0)
    after = time.monotonic()
    assert before <= request.made_at_s <= after
    left_s = time_left_s(request)
    assert left_s is not None and 0 < left_s <= 60.0
    unlimited = InferenceRequest(id="i", model_id="m", prompt="x")
    assert time_left_s(unlimited) is None
