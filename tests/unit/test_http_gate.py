"""The cap on open streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ferrum_local.errors import Unavailable
from ferrum_local.http.errors import as_api_error
from ferrum_local.http.gate import StreamGate


def test_rt_07_beyond_the_limit_is_a_503_with_retry_after() -> None:
    gate = StreamGate(2)
    with gate.admit(), gate.admit():
        with pytest.raises(Unavailable, match="All 2 streams") as refused:
            gate.admit()
        error = as_api_error(refused.value)
        assert (error.status, error.headers["Retry-After"]) == (503, "2")
    assert gate.open == 0


def test_an_admission_is_given_back_once() -> None:
    gate = StreamGate(2)
    first, second = gate.admit(), gate.admit()
    first.release()
    first.release()
    assert gate.open == 1
    second.release()
    assert gate.open == 0


def test_threads_never_get_more_places_than_there_are() -> None:
    gate = StreamGate(3)

    def take(_: int) -> bool:
        try:
            with gate.admit():
                assert gate.open <= 3
        except Unavailable:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(take, range(200)))
    assert any(taken)
    assert gate.open == 0
