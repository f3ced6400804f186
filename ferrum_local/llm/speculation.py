"""Speculation: draft what followed the last time this text occurred, or what a small model guesses.

A draft is checked by sampling from the model itself at every place, so it changes how fast
tokens come and not their distribution. It is used where its measured acceptance pays.
Source of the idea: "Prompt Lookup Decoding" (Saxena, 2023), n-gram matching on own context.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

_N_GRAM = 3
_DRAFT_LENGTHS = (2, 4, 8, 16, 24)
MAX_DRAFT = _DRAFT_LENGTHS[-1]
_FIRST_GUESS = 0.3  # acceptance before anything was seen
_FIRST_GUESS_OF_MODEL = 0.7
_TRY_AGAIN_TOKENS = 64
_MAX_MODEL_DRAFT = 8
_SMOOTHING = 0.1
_MIN_GAIN = 1.15  # a draft must promise this many times the plain speed
# What a step costs whatever its size, in tokens. With it a guess costs 0.35 of a step beside one
# stream, 0.7 beside four and 0.8 beside eight, as measured on CPUs. A constant and not a
# measurement: the kernels round differently for several tokens than for one, so a decision that
# followed the clock would give one seed different texts.
_STEP_COST_TOKENS = 1.86
_MAX_STEP_GUESSES = 64  # all streams together; each needs a row of logits


class NgramLookup:
    """Remembers where each run of three tokens last ended.

    :param earlier: text that the answer may copy from, before the prompt (a prediction).
    """

    def __init__(self, earlier: Iterable[int] = ()) -> None:
        self._history: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._match: int | None = None  # end of the latest earlier occurrence of the tail
        self.extend(earlier)

    def extend(self, tokens: Iterable[int]) -> None:
        history, ends = self._history, self._ends
        for token in tokens:
            history.append(token)
            key = tuple(history[-_N_GRAM:])
            self._match = ends.get(key)
            ends[key] = len(history)

    def draft(self, n_tokens: int) -> list[int]:
        """Up to ``n_tokens`` that followed the tail the last time; empty if it is new."""
        if self._match is None or len(self._history) < _N_GRAM:
            return []
        return self._history[self._match : self._match + n_tokens]


class GuessingModel(Protocol):
    """A small model that guesses, see :class:`ferrum_local.llm.draft_model.DraftModel`.

    ``relative_cost`` is the work of one of its tokens over that of the large model.
    """

    relative_cost: float

    def draft(self, slot: int, tokens: list[int], n_tokens: int) -> list[int]: ...


class _Source:
    """How often the guesses of one source come true, and the draft length that pays."""

    def __init__(self, first_guess: float, relative_cost: float = 0.0) -> None:
        self._acceptance = first_guess
        self._cost_tokens = 1 + relative_cost * (1 + _STEP_COST_TOKENS)

    def best_length(self, n_streams: int, n_most: int) -> int:
        """How many guesses for each of ``n_streams`` are the fastest; 0 where none pay."""
        guess_cost = self._cost_tokens * n_streams / (n_streams + _STEP_COST_TOKENS)
        best_length, best_gain = 0, _MIN_GAIN
        for length in _DRAFT_LENGTHS:
            n = min(length, n_most)
            expected = sum(self._acceptance**i for i in range(n + 1))
            gain = expected / (1 + n * guess_cost)
            if gain > best_gain:
                best_length, best_gain = n, gain
        return best_length

    def observe(self, guessed: list[int], sampled: list[int]) -> None:
        for guess, token in zip(guessed, sampled, strict=False):
            hit = guess == token
            self._acceptance += _SMOOTHING * (hit - self._acceptance)
            if not hit:
                break

    def observe_unused(self) -> None:
        """Guesses were made in vain, which costs as much as wrong ones."""
        self._acceptance -= _SMOOTHING * self._acceptance

    def expect_at_least(self, acceptance: float) -> None:
        self._acceptance = max(self._acceptance, acceptance)


class DraftPlan(NamedTuple):
    """How many guesses a sequence wants, and whether the draft model is to make them."""

    n_tokens: int
    by_model: bool


class Speculator:
    """Drafts for one sequence, with a length that follows how often drafts come true.

    What the sequence wrote before is looked up first; a draft model, if there is one,
    guesses where that has nothing. Acceptance of look-ups is learnt also while nothing is
    drafted, by comparing what would have been drafted with what was sampled, so that trying
    costs nothing. A draft model that did not pay is tried again after a while.

    Look-ups follow from the sequence's own tokens and the number of streams alone, so that the
    run of a lone request can be repeated. How far a draft model has read depends on what its
    slot held before.
    """

    def __init__(
        self,
        prompt: Iterable[int],
        prediction: Iterable[int] = (),
        draft_model: GuessingModel | None = None,
    ) -> None:
        self._lookup = NgramLookup(prediction)
        self._lookup.extend(prompt)
        self._by_lookup = _Source(_FIRST_GUESS)
        self._looked_up: list[int] = self._lookup.draft(MAX_DRAFT)
        self._draft_model = draft_model
        self._by_model: _Source | None = None
        if draft_model is not None:
            self._by_model = _Source(_FIRST_GUESS_OF_MODEL, draft_model.relative_cost)
        self._modelled: list[int] = []
        self._n_since_modelled = 0

    def plan(self, n_streams: int, n_most: int) -> DraftPlan:
        """The draft that pays in the next step, of no tokens if none does.

        :param n_streams: the sequences that are decoded in it, each with as many guesses.
        :param n_most: tokens, of this sequence.
        """
        n_most = min(n_most, _MAX_STEP_GUESSES // n_streams)
        n_lookup = self._by_lookup.best_length(n_streams, min(n_most, len(self._looked_up)))
        if n_lookup or self._by_model is None:
            return DraftPlan(n_lookup, by_model=False)
        if self._n_since_modelled >= _TRY_AGAIN_TOKENS:
            self._n_since_modelled = 0
            self._by_model.expect_at_least(_FIRST_GUESS_OF_MODEL)
        n_model = self._by_model.best_length(n_streams, min(n_most, _MAX_MODEL_DRAFT))
        return DraftPlan(n_model, by_model=True)

    def draft(self, plan: DraftPlan, slot: int, tokens: list[int]) -> list[int]:
        """The guesses of a plan. A draft model may make fewer.

        :param slot: where the sequence runs; the draft model follows it there.
        :param tokens: the whole sequence so far.
        """
        if plan.by_model and self._draft_model is not None:
            self._modelled = self._draft_model.draft(slot, tokens, plan.n_tokens)
            return self._modelled
        return self._looked_up[: plan.n_tokens]

    def discard(self) -> None:
        """The guesses of the last draft did not go into the step."""
        if self._modelled and self._by_model is not None:
            self._by_model.observe_unused()
        self._modelled = []

    def observe(self, sampled: list[int]) -> None:
        """Tokens that were sampled since the last call, in order."""
        self._by_lookup.observe(self._looked_up, sampled)
        if self._by_model is not None:
            self._by_model.observe(self._modelled, sampled)
            self._n_since_modelled = 0 if self._modelled else self._n_since_modelled + len(sampled)
        self._modelled = []
        self._lookup.extend(sampled)
        self._looked_up = self._lookup.draft(MAX_DRAFT)
