"""The requests of one call side by side, on an engine whose queue is full now and then."""

from __future__ import annotations

import pytest

from ferrum_local.errors import QueueFull
from ferrum_local.http.openai.parallel import ParallelStreams
from ferrum_local.types import InferenceRequest
from tests.fakes import ScriptedEngine, ScriptedStream


class CrowdedEngine(ScriptedEngine):
    """Refuses the starts whose numbers are in ``full_at``; the first is 0."""

    def __init__(self, full_at: set[int]) -> None:
        super().__init__()
        self.full_at = full_at
        self.n_asked = 0

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        self.n_asked += 1
        if self.n_asked - 1 in self.full_at:
            raise QueueFull("full", retry_after_s=1)
        return super().infer_stream(request)


def requests(n: int) -> list[InferenceRequest]:
    return [InferenceRequest(id=f"r{i}", model_id="", prompt="x") for i in range(n)]


def texts(streams: ParallelStreams, n: int) -> list[str]:
    found = [""] * n
    for got in streams.chunks():
        if got is not None:
            found[got[0]] += got[1].text
    return found


def test_what_finds_no_place_waits_for_this_calls_own_streams_to_end() -> None:
    with ParallelStreams(CrowdedEngine({1}), requests(3)) as streams:
        assert len(set(texts(streams, 3))) == 1


def test_a_queue_filled_by_others_meanwhile_does_not_break_what_has_begun() -> None:
    engine = CrowdedEngine({1, 2, 3})  # also when the first one has ended, and once more
    with ParallelStreams(engine, requests(2)) as streams:
        first, second = texts(streams, 2)
    assert first == second
    assert engine.n_asked == 5


def test_a_queue_that_is_full_at_the_start_refuses_the_call() -> None:
    with pytest.raises(QueueFull):
        ParallelStreams(CrowdedEngine({0}), requests(2))


def test_leaving_while_all_wait_ends_it() -> None:
    engine = CrowdedEngine(set(range(1, 100)))
    with ParallelStreams(engine, requests(2)) as streams:
        chunks = streams.chunks()
        while next(chunks) is not None:
            pass
        streams.close()
        assert list(chunks) == []
