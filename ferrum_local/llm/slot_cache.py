"""Which slot a sequence gets, and which cached prefix it starts from. Pure policy."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC
from typing import NamedTuple

from ferrum_local.llm.prefix_tree import Match, PrefixTree

# A copied prefix must save this many tokens of prefill: copying a slot moves its whole
# KV stream, which takes about as long as evaluating a few tokens.
MIN_COPY_TOKENS = 16


class Placement(NamedTuple):
    """Put the sequence into ``slot``; its first ``n_reused`` tokens are already there,
    or will be once ``copy_from`` (another slot) was copied over. ``evicted`` is what the
    slot held, if more than what is reused of it."""

    slot: int
    n_reused: int
    copy_from: int | None
    evicted: list[int]


class SlotCache:
    """Idle slots are a cache of prefixes, evicted least recently used; busy ones never.

    :param can_cut: whether a slot can be cut back to any length (false for recurrent
        state, where only a prefix that is the whole of a slot can be reused).
    """

    def __init__(self, n_slots: int, *, can_cut: bool = True) -> None:
        self.n_slots = n_slots
        self.can_cut = can_cut
        self._tree = PrefixTree()
        self._busy: set[int] = set()
        self._last_used = dict.fromkeys(range(n_slots), 0)
        self._clock = 0

    @property
    def n_free(self) -> int:
        return self.n_slots - len(self._busy)

    @property
    def n_cells_used(self) -> int:
        return sum(self._tree.length(slot) for slot in range(self.n_slots))

    def length(self, slot: int) -> int:
        """Tokens the slot holds."""
        return self._tree.length(slot)

    def tokens(self, slot: int) -> list[int]:
        return self._tree.tokens(slot)

    def reusable(self, tokens: SequenceABC[int]) -> int:
        """How many leading tokens could be taken from some slot right now."""
        return self._best_source(tokens).n_tokens

    def kept_elsewhere(self, tokens: SequenceABC[int]) -> int:
        """How many leading tokens of what a slot is losing could be taken from another one."""
        if self.can_cut:
            return self._tree.longest_prefix(tokens).n_tokens
        return self._tree.longest_whole(tokens).n_tokens

    def place(self, tokens: SequenceABC[int], *, reuse: bool = True) -> Placement | None:
        """Choose a slot for a sequence that starts with ``tokens`` and mark it busy.

        At least one token is always left to evaluate, since its logits are needed.
        None: every slot is busy. The caller moves the KV cells as the placement says.
        """
        free = [slot for slot in range(self.n_slots) if slot not in self._busy]
        if not free:
            return None
        n_reused, sources = self._best_source(tokens) if reuse else Match(0, frozenset())
        idle_sources = [slot for slot in free if slot in sources]
        # A slot that holds nothing beyond the shared prefix is simply continued: the usual
        # next turn of a chat. One that holds more keeps it if another slot can be had, unless
        # it is most of the prompt: the same question again. Two chats of a model share at least
        # their first token, and for that alone no conversation is given up.
        extended = [slot for slot in idle_sources if self._tree.length(slot) == n_reused]
        others = [slot for slot in free if slot not in sources]
        copy_from: int | None = None
        if n_reused and extended:
            slot = max(extended, key=self._age_key)
        elif n_reused >= MIN_COPY_TOKENS and others:
            slot = min(others, key=self._age_key)
            copy_from = max(sources, key=self._age_key)
            self._touch(copy_from)
        elif idle_sources and 2 * n_reused >= len(tokens):
            slot = min(idle_sources, key=self._age_key)
        else:
            slot = min(free, key=self._age_key)
            n_reused = n_reused if slot in sources else 0
        kept = 0 if copy_from is not None else n_reused
        evicted = self._tree.tokens(slot) if self._tree.length(slot) > kept else []
        self._tree.truncate(slot, kept)
        if copy_from is not None:
            self._tree.insert(slot, self._tree.tokens(copy_from)[:n_reused])
        self._busy.add(slot)
        self._touch(slot)
        return Placement(slot, n_reused, copy_from, evicted)

    def _best_source(self, tokens: SequenceABC[int]) -> Match:
        if self.can_cut:
            return self._tree.longest_prefix(tokens[:-1])
        return self._tree.longest_whole(tokens[:-1])

    def _age_key(self, slot: int) -> tuple[bool, int, int]:
        """Sorts empty slots first, then least recently used, then lowest (kept dense:
        llama.cpp evaluates neighbouring slots of one step together)."""
        return (self._tree.length(slot) > 0, self._last_used[slot], slot)

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._last_used[slot] = self._clock

    def append(self, slot: int, tokens: SequenceABC[int]) -> None:
        """The slot gained KV entries for ``tokens``."""
        if len(tokens) == 1:
            self._tree.extend(slot, tokens[0])
        else:
            self._tree.extend_many(slot, tokens)

    def release(self, slot: int) -> None:
        """The slot's sequence ended; what it holds stays as cache."""
        self._busy.discard(slot)
        self._touch(slot)

    def moves_to_gather(self) -> list[tuple[int, int]]:
        """What brings all busy slots side by side: pairs of a busy slot and an idle one to move
        to. As few as possible, and onto what holds least."""
        n = len(self._busy)

        def cost(window: range) -> tuple[int, int]:
            idle = [slot for slot in window if slot not in self._busy]
            return len(idle), sum(self._tree.length(slot) for slot in idle)

        windows = [range(first, first + n) for first in range(self.n_slots - n + 1)]
        window = min(windows, key=cost)
        sources = [slot for slot in sorted(self._busy) if slot not in window]
        return list(zip(sources, (s for s in window if s not in self._busy), strict=True))

    def move(self, source: int, target: int) -> None:
        """The busy slot ``source`` was copied over the idle one ``target``, and is empty now."""
        self._tree.remove(target)
        self._tree.insert(target, self._tree.tokens(source))
        self._tree.remove(source)
        self._busy.remove(source)
        self._busy.add(target)
        self._touch(target)

    def forget(self, slot: int) -> None:
        """The slot's KV entries are gone."""
        self._tree.remove(slot)

    def check(self) -> None:
        """:raises PrefixTreeError: when the tree is not in order."""
        self._tree.check()
