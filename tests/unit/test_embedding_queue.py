"""Which texts share a step: turns, bounds, and nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.llm.embedding_queue import EmbeddingJob, EmbeddingQueue

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def job(name: str, *n_tokens: int) -> EmbeddingJob:
    return EmbeddingJob(name, [[0] * n for n in n_tokens])


def step(queue: EmbeddingQueue, n_tokens: int = 16, n_sequences: int = 8) -> list[tuple[str, int]]:
    items = queue.take_step(n_tokens=n_tokens, n_sequences=n_sequences)
    return [(item.job.request_id, item.place) for item in items]


def test_texts_of_several_requests_share_a_step() -> None:
    queue = EmbeddingQueue()
    for name in ("a", "b", "c"):
        queue.add(job(name, 4))
    assert step(queue) == [("a", 0), ("b", 0), ("c", 0)]
    assert step(queue) == []


def test_a_short_request_does_not_wait_for_all_of_a_long_one() -> None:
    queue = EmbeddingQueue()
    queue.add(job("long", *[8] * 10))
    queue.add(job("short", 8))
    assert ("short", 0) in step(queue)


def test_a_text_longer_than_a_step_has_one_of_its_own() -> None:
    queue = EmbeddingQueue()
    queue.add(job("huge", 100))
    queue.add(job("small", 1))
    assert step(queue) == [("huge", 0)]
    assert step(queue) == [("small", 0)]


def test_a_text_that_never_fits_beside_others_gets_its_turn() -> None:
    queue = EmbeddingQueue()
    queue.add(job("small", *[8] * 50))
    queue.add(job("wide", 16))
    for _ in range(2):
        if ("wide", 0) in step(queue):
            return
    raise AssertionError("the wide text still waits")


def test_what_was_discarded_is_not_run() -> None:
    queue = EmbeddingQueue()
    gone = job("gone", 4, 4)
    queue.add(gone)
    queue.discard(gone)
    queue.discard(gone)
    assert step(queue) == []


def test_a_request_waits_until_its_first_text_is_in_a_step() -> None:
    queue = EmbeddingQueue()
    queue.add(job("a", 16, 16))
    queue.add(job("b", 16))
    assert queue.n_waiting == 2
    step(queue)
    assert queue.n_waiting == 1


@given(
    jobs=st.lists(lengths, max_size=8),
    n_tokens=st.integers(1, 64),
    n_sequences=st.integers(1, 16),
)
def test_every_text_is_in_exactly_one_step_within_the_bounds(
    jobs: list[list[int]], n_tokens: int, n_sequences: int
) -> None:
    queue = EmbeddingQueue()
    for i, sizes in enumerate(jobs):
        queue.add(job(str(i), *sizes))
    seen: list[tuple[str, int]] = []
    while items := queue.take_step(n_tokens=n_tokens, n_sequences=n_sequences):
        assert len(items) <= n_sequences
        total = sum(len(item.tokens) for item in items)
        assert total <= n_tokens or len(items) == 1
        seen += [(item.job.request_id, item.place) for item in items]
    assert sorted(seen) == sorted((str(i), p) for i, s in enumerate(jobs) for p in range(len(s)))
    assert len(queue) == 0
