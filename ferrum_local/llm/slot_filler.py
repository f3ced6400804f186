"""Gives sequences their slots: places them, and moves KV states to where they are needed."""

from __future__ import annotations

from ferrum_local.llm.context import LlamaContext
from ferrum_local.llm.prompt_cache import MIN_CACHED_TOKENS, CachedPrefix, PromptCache
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
        """Put a sequence into a slot with as much of it as is cached; False: none is free.

        :raises Exception: what moving the KV cache met; the slot is free and empty then.
        """
        if not self._slots.n_free:
            return False
        cached = self._find_cached(sequence)
        placement = self._slots.place(
            sequence.tokens, reuse=sequence.may_reuse_prefix and cached is None
        )
        if placement is None:
            return False
        slot = placement.slot
        try:
            self._keep(slot, placement.evicted)
            if cached is not None:
                n_reused = self._load(cached, slot)
            else:
                if placement.copy_from is not None:
                    self._context.copy_slot(placement.copy_from, slot)
                n_reused = self._cut(slot, placement.n_reused)
        except Exception:
            self._slots.release(slot)
            self.empty(slot)
            raise
        sequence.slot, sequence.n_computed = slot, n_reused
        return True

    def _find_cached(self, sequence: Sequence) -> CachedPrefix | None:
        """A cached state that reaches well further than what any slot has."""
        if not self._prompts.enabled or not sequence.may_reuse_prefix:
            return None
        n_in_slots = self._slots.reusable(sequence.tokens)
        return self._prompts.find(sequence.tokens[:-1], n_in_slots + MIN_CACHED_TOKENS)

    def _cut(self, slot: int, n_tokens: int) -> int:
        """Cut off an older conversation's tail; returns what is left, which may be nothing."""
        if self._context.truncate_slot(slot, n_tokens):
            return n_tokens
        self.empty(slot)
        return 0

    def _load(self, cached: CachedPrefix, slot: int) -> int:
        """Load a cached state into a slot; returns how many tokens of it are there then."""
        self.empty(slot)
        if not self._context.load_slot(slot, cached.state):
            self.empty(slot)
            return 0
        self._slots.append(slot, cached.tokens[: cached.n_shared])
        return self._cut(slot, cached.n_shared)

    def move(self, sequence: Sequence, target: int) -> None:
        """Put a running sequence into the idle slot ``target``, between two steps.

        :raises Exception: what saving the target's content met; nothing has changed then.
        """
        source = sequence.slot
        evicted = self._slots.tokens(target)
        self._slots.forget(target)
        try:
            self._keep(target, evicted)
        except Exception:
            self._slots.append(target, evicted)
            raise
        self._context.copy_slot(source, target)
        self._context.clear_slot(source)
        self._slots.move(source, target)
        sequence.slot = target

    def may_evict(self, slot: int) -> bool:
        """Whether little is lost when an idle slot is given up: it is empty or can be saved."""
        tokens = self._slots.tokens(slot)
        return len(tokens) < MIN_CACHED_TOKENS or self._prompts.has_room_for(
            self._context.slot_state_bytes(slot)
        )

    def _keep(self, slot: int, evicted: list[int]) -> None:
        """Save what the slot loses, if no other slot has most of it."""
        if not self._prompts.enabled or len(evicted) < MIN_CACHED_TOKENS:
            return
        elsewhere = self._slots.kept_elsewhere(evicted)
        is_worth_it = len(evicted) - elsewhere >= MIN_CACHED_TOKENS
        if is_worth_it and self._prompts.has_room_for(self._context.slot_state_bytes(slot)):
            self._store(slot, evicted)

    def _store(self, slot: int, tokens: list[int]) -> None:
        state = self._context.save_slot(slot)
        if state is not None:
            self._prompts.store(tokens, state)

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
                self._store(slot, tokens)
