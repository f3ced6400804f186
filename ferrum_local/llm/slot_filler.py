"""Gives sequences their slots: places them, and moves KV states to where they are needed."""

from __future__ import annotations

from ferrum_local.llm.context import LlamaContext
from ferrum_local.llm.prompt_cache import MIN_CACHED_TOKENS, PromptCache
from ferrum_local.llm.sequence import Sequence
from ferrum_local.llm.slot_cache import SlotCache


class SlotFiller:
    """The decode thread's hands on the KV cache, between steps."""

    def __init__(self, context: LlamaContext, slots: SlotCache, prompts: PromptCache) -> None:
        self._context = context
        self._slots = slots
        self._prompts = prompts

    def reusable(self, sequence: Sequence) -> int:
        """How many of the sequence's leading tokens need not be evaluated."""
        in_slots = self._slots.reusable(sequence.tokens)
        if not self._prompts.enabled:
            return in_slots
        return max(in_slots, self._prompts.shared_length(sequence.tokens[:-1]))

    def fill(self, sequence: Sequence) -> bool:
        """Put a sequence into a slot with as much of it as is cached; False: none is free."""
        placement = self._slots.place(sequence.tokens, reuse=sequence.may_reuse_prefix)
        if placement is None:
            return False
        slot = placement.slot
        self._keep(slot, placement.evicted)
        if placement.copy_from is not None:
            self._context.copy_slot(placement.copy_from, slot)
        n_reused = placement.n_reused
        # Beyond what is reused, the slot may hold an older conversation's tail.
        if not self._context.truncate_slot(slot, n_reused):
            self.empty(slot)
            n_reused = 0
        if self._prompts.enabled and sequence.may_reuse_prefix:
            n_reused = self._restore(sequence, slot, n_reused)
        sequence.slot, sequence.n_computed = slot, n_reused
        return True

    def _keep(self, slot: int, evicted: list[int]) -> None:
        """Save what the slot loses, if no other slot has most of it."""
        if not self._prompts.enabled or len(evicted) < MIN_CACHED_TOKENS:
            return
        elsewhere = self._slots.shared_length(evicted)
        if len(evicted) - elsewhere >= MIN_CACHED_TOKENS:
            self._prompts.store(evicted, self._context.save_slot(slot))

    def _restore(self, sequence: Sequence, slot: int, n_reused: int) -> int:
        """Load a cached state that reaches further than what the slot has."""
        cached = self._prompts.find(sequence.tokens[:-1], n_reused + MIN_CACHED_TOKENS)
        if cached is None:
            return n_reused
        self.empty(slot)
        if not self._context.load_slot(slot, cached.state):
            self.empty(slot)
            return 0
        if not self._context.truncate_slot(slot, cached.n_shared):
            self.empty(slot)
            return 0
        self._slots.append(slot, cached.tokens[: cached.n_shared])
        return cached.n_shared

    def empty(self, slot: int) -> None:
        self._context.clear_slot(slot)
        self._slots.forget(slot)

    def save_all(self) -> None:
        """Keep what the slots hold, for the next start (only a disk survives that)."""
        if not self._prompts.survives_restart:
            return
        for slot in range(self._slots.n_slots):
            tokens = self._slots.tokens(slot)
            if len(tokens) >= MIN_CACHED_TOKENS:
                self._prompts.store(tokens, self._context.save_slot(slot))
