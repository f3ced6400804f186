"""Prompt lookup: what is drafted, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.llm.speculation import MAX_DRAFT, NgramLookup, Speculator

tokens = st.lists(st.integers(0, 3), max_size=60)


def proposed(speculator: Speculator, n_most: int = MAX_DRAFT, *, n_streams: int = 1) -> list[int]:
    plan = speculator.plan(n_streams, n_most)
    return speculator.draft(plan, 0, [1, 2, 3]) if plan.n_tokens else []


@given(tokens)
def test_a_draft_is_what_followed_the_latest_earlier_occurrence(history: list[int]) -> None:
    lookup = NgramLookup()
    lookup.extend(history)
    expected: list[int] = []
    if len(history) >= 3:
        tail = history[-3:]
        for end in range(len(history) - 1, 2, -1):
            if history[end - 3 : end] == tail:
                expected = history[end : end + 8]
                break
    assert lookup.draft(8) == expected


@given(tokens, st.integers(0, 60))
def test_feeding_in_pieces_changes_nothing(history: list[int], cut: int) -> None:
    whole, pieces = NgramLookup(), NgramLookup(history[:cut])
    whole.extend(history)
    pieces.extend(history[cut:])
    assert whole.draft(8) == pieces.draft(8)


def test_copying_is_drafted_once_it_shows_and_in_growing_lengths() -> None:
    text = list(range(200))
    speculator = Speculator(text + text[:3])
    position, lengths = 3, []
    while position < 150:
        draft = proposed(speculator)
        lengths.append(len(draft))
        assert draft == text[position : position + len(draft)]
        sampled = text[position : position + len(draft) + 1]
        speculator.observe(sampled)
        position += len(sampled)
    assert lengths[0] == 0, "nothing is drafted on a first guess"
    assert lengths[-1] >= 8
    assert len(lengths) < 0.5 * 147


def test_text_that_does_not_repeat_is_not_drafted() -> None:
    speculator = Speculator([1, 2, 3, 4, 1, 2, 3])
    for token in (9, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 3, 6):
        assert proposed(speculator) == []
        speculator.observe([token])


def test_drafting_stops_where_the_copy_ends() -> None:
    text = list(range(100))
    speculator = Speculator(text + text[:3])
    for token in text[3:40]:
        speculator.observe([token])
    assert proposed(speculator)
    for i in range(40):  # other text now, on the same three words again and again
        speculator.observe([1000 + i, 0, 1, 2])
    assert proposed(speculator) == []


def test_a_prediction_is_a_source_of_drafts() -> None:
    prediction = list(range(50, 90))
    speculator = Speculator([1, 2, 3], prediction)
    for token in prediction[:20]:
        speculator.observe([token])
    draft = proposed(speculator)
    assert draft
    assert draft == prediction[20 : 20 + len(draft)]


def test_never_more_than_asked() -> None:
    text = list(range(100))
    speculator = Speculator(text + text[:3])
    for token in text[3:50]:
        speculator.observe([token])
    assert len(proposed(speculator, 3)) == 3
    assert proposed(speculator, 0) == []


def test_beside_other_streams_a_draft_must_be_surer() -> None:
    def n_hits_needed(n_streams: int) -> int:
        speculator = Speculator([*range(200), 0, 1, 2])
        for n_hits in range(150):
            if proposed(speculator, n_streams=n_streams):
                return n_hits
            speculator.observe([3 + n_hits])
        raise AssertionError("nothing was drafted")

    needed = [n_hits_needed(n) for n in (1, 2, 4, 8)]
    assert needed == sorted(set(needed)), needed


def test_the_guesses_of_a_step_have_a_bound() -> None:
    speculator = Speculator([*range(300), 0, 1, 2])
    for token in range(3, 250):
        speculator.observe([token])
    for n_streams in (1, 4, 8):
        assert 0 < len(proposed(speculator, n_streams=n_streams)) * n_streams <= 64
    assert proposed(speculator, n_streams=100) == []


class FixedModel:
    """A draft model that always guesses the same."""

    relative_cost = 0.05

    def __init__(self, guess: int) -> None:
        self.guess = guess
        self.n_asked = 0

    def draft(self, _slot: int, _tokens: list[int], n_tokens: int) -> list[int]:
        self.n_asked += 1
        return [self.guess] * n_tokens


def test_a_draft_model_guesses_where_nothing_was_written_before() -> None:
    speculator = Speculator([1, 2, 3], draft_model=FixedModel(7))
    draft = proposed(speculator)
    assert draft
    assert set(draft) == {7}


def test_a_draft_model_that_is_wrong_is_left_alone_and_tried_again() -> None:
    model = FixedModel(7)
    speculator = Speculator([1, 2, 3], draft_model=model)
    asked_at = []
    for i in range(200):
        if proposed(speculator):
            asked_at.append(i)
        speculator.observe([1000 + i])
    assert len(asked_at) < 40, "most tokens cost no guess"
    assert any(i > 60 for i in asked_at), "it gets another chance"


def test_a_draft_model_that_guesses_in_vain_is_left_alone() -> None:
    model = FixedModel(7)
    speculator = Speculator([1, 2, 3], draft_model=model)
    for _ in range(50):
        if proposed(speculator, n_streams=2):
            speculator.discard()
        speculator.observe([7])
    assert model.n_asked < 10
