"""Speculation by prompt lookup: draft what followed the last time this text occurred.

A draft is checked by sampling from the model itself at every place, so it changes how fast
tokens come and not their distribution. It is used where its measured acceptance pays.
Source of the idea: "Prompt Lookup Decoding" (Saxena, 2023), n-gram matching on own context.
"""

from __future__ import annotations

from collections.abc import Iterable

_N_GRAM = 3
_DRAFT_LENGTHS = (2, 4, 8, 16, 24)
MAX_DRAFT = _DRAFT_LENGTHS[-1]
_FIRST_GUESS = 0.3  # acceptance before anything was seen
_SMOOTHING = 0.1
_MIN_GAIN = 1.15  # a draft must promise this many times the plain speed
# Evaluating one guessed token costs about this part of a decode step (0.3 to 0.35 measured on
# CPUs). A constant and not a measurement: the kernels round differently for several tokens than
# for one, so a decision that followed the clock would give one seed different texts.
_GUESS_COST = 0.35


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


class Speculator:
    """Drafts for one sequence, with a length that follows how often drafts come true.

    Acceptance is learnt also while nothing is drafted, by comparing what would have been
    drafted with what was sampled, so that trying costs nothing.
    """

    def __init__(self, prompt: Iterable[int], prediction: Iterable[int] = ()) -> None:
        self._lookup = NgramLookup(prediction)
        self._lookup.extend(prompt)
        self._acceptance = _FIRST_GUESS
        self._guess: list[int] = self._lookup.draft(MAX_DRAFT)

    def propose(self, n_most: int) -> list[int]:
        """A draft worth evaluating in the next step, at most ``n_most`` tokens.

        It follows from the sequence's own tokens alone, so that a run can be repeated.
        """
        best_length, best_gain = 0, _MIN_GAIN
        for length in _DRAFT_LENGTHS:
            n = min(length, n_most, len(self._guess))
            expected = sum(self._acceptance**i for i in range(n + 1))
            gain = expected / (1 + n * _GUESS_COST)
            if gain > best_gain:
                best_length, best_gain = n, gain
        return self._guess[:best_length]

    def observe(self, sampled: list[int]) -> None:
        """Tokens that were sampled since the last call, in order."""
        for guessed, token in zip(self._guess, sampled, strict=False):
            hit = guessed == token
            self._acceptance += _SMOOTHING * (hit - self._acceptance)
            if not hit:
                break
        self._lookup.extend(sampled)
        self._guess = self._lookup.draft(MAX_DRAFT)
