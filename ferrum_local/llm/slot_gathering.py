"""Keeps the slots at work side by side, since llama.cpp computes neighbours in one pass.

Sequences end in any order and leave gaps. Each run of neighbours then costs a pass over all
weights: four streams on every other slot took 49 ms a step where 25 do.
"""

from __future__ import annotations

import logging

from ferrum_local.llm.sequence import Sequence, SequenceState
from ferrum_local.llm.slot_cache import SlotCache
from ferrum_local.llm.slot_filler import SlotFiller

logger = logging.getLogger(__name__)

# A move takes about as long as the pass that it saves in each step from then on, and some more
# where it evicts something. So it waits until the same sequences have run for a few steps, and
# is left out where few tokens are left to gain by.
STEADY_STEPS = 4
_MIN_TOKENS_LEFT = 32


class SlotGatherer:
    """Moves sequences into neighbouring slots, between steps, on the decode thread."""

    def __init__(self, slots: SlotCache, filler: SlotFiller) -> None:
        self._slots = slots
        self._filler = filler
        self._at_work: frozenset[int] = frozenset()
        self._n_steps = 0  # that ``_at_work`` has been so

    def gather(self, running: list[Sequence]) -> int:
        """Call this before each step.

        :returns: how many sequences moved.
        """
        at_work = frozenset(sequence.slot for sequence in running)
        is_steady = at_work == self._at_work and all(map(_is_decoding, running))
        self._n_steps = self._n_steps + 1 if is_steady else 0
        self._at_work = at_work
        if self._n_steps != STEADY_STEPS:
            return 0
        moves = self._slots.moves_to_gather()
        by_slot = {sequence.slot: sequence for sequence in running}
        if not all(
            by_slot[source].n_left >= _MIN_TOKENS_LEFT and self._filler.may_evict(target)
            for source, target in moves
        ):
            return 0
        for source, target in moves:
            try:
                self._filler.move(by_slot[source], target)
            except Exception:  # memory or disk: it stays where it is
                logger.exception("a sequence could not be moved from slot %d", source)
                return 0
        return len(moves)


def _is_decoding(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.DECODE
