"""What goes into the next batch, and who gets the next free slot. Pure policy.

The rules are the scheduler rules of docs/architecture.md: decode before prefill, a prefill
budget that follows measured speed, priorities with ageing, fairness between clients.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

from ferrum_local.llm.sequence import Sequence, SequenceState
from ferrum_local.types import Priority

# A waiting request gains one priority level for every so many seconds.
AGEING_S = 15.0
# While streams run, a step of prefill may take this many times a step of decode: with it a
# stream's slowest token comes within 3 steps, and prefill keeps much of its speed.
_STALL_FACTOR = 2.0
# Far into a long prompt even the smallest step of prefill may take so many times a step of decode.
# From there on one token of the prompt goes into each step of decode instead.
_JOIN_FACTOR = 1.7
_TRUSTED_STEPS = 4  # of this prompt, before that is decided
_TRY_AGAIN_STEPS = 512  # steps that hold both tell nothing of either
# With no stream to hold up, a step may take this long: it bounds how late a new request or
# a cancellation is seen, and one prompt alone gains nothing from larger batches on a CPU.
_MAX_PREFILL_STEP_S = 0.25
# Several prompts have longer, so that they decode together sooner.
_MAX_BURST_STEP_S = 0.6
_MIN_PREFILL_TOKENS = 2
_STEADY_PREFILL_TOKENS = 32  # in smaller steps a token costs more
_SMALL_STEP_COST = 1.3  # so many times more, until it was measured
# Tokens that a grammar forces go in with the one before them, so many of each sequence. They
# cost what prefill costs, so beside other streams they share its budget.
MAX_FORCED_TOKENS = 32
_ROW_GROUP = 4
_MIN_REMAINDER = 16
_SMOOTHING = 0.2  # weight of the newest measurement


class StepPlan(NamedTuple):
    """The next batch: one token of each ``decode``, so many tokens of each ``prefill``.

    Of a sequence with forced tokens to evaluate, up to ``n_forced`` more. ``may_draft``: guesses
    may lengthen this step.
    """

    decode: list[Sequence]
    prefill: list[tuple[Sequence, int]]
    n_forced: int = 0
    may_draft: bool = False

    @property
    def sequences(self) -> list[Sequence]:
        return self.decode + [sequence for sequence, _ in self.prefill]


class StepTimes:
    """Measured step times, from which the prefill budget follows.

    :param prefill_s: first guess of seconds per prefill token, until steps were measured.
    """

    def __init__(self, prefill_s: float = 0.003) -> None:
        self.prefill_s = prefill_s
        self._small_prefill_s = _SMALL_STEP_COST * prefill_s
        self._n_small_steps = 0  # since ``begin_prompt``
        self._decode_s: dict[int, float] = {}

    def record(self, n_decode: int, n_prefill: int, step_s: float) -> None:
        """A step of ``n_decode`` sequences and ``n_prefill`` prompt tokens took ``step_s``."""
        if n_decode and n_prefill:
            return  # llama.cpp splits such a step in ways that would tell little of either
        if n_decode:
            known = self._decode_s.get(n_decode, step_s)
            self._decode_s[n_decode] = known + _SMOOTHING * (step_s - known)
        elif n_prefill >= _STEADY_PREFILL_TOKENS:
            self.prefill_s += _SMOOTHING * (step_s / n_prefill - self.prefill_s)
        elif n_prefill >= _MIN_PREFILL_TOKENS:
            token_s = step_s / n_prefill
            weight = _SMOOTHING if self._n_small_steps else 1.0
            self._small_prefill_s += weight * (token_s - self._small_prefill_s)
            self._n_small_steps += 1
            if token_s < self.prefill_s:  # with more of them each would take no longer
                self.prefill_s += _SMOOTHING * (token_s - self.prefill_s)

    def decode_s(self, n_decode: int) -> float:
        """Expected seconds of a step that only decodes ``n_decode`` sequences."""
        if not n_decode:
            return 0.0
        if n_decode in self._decode_s:
            return self._decode_s[n_decode]
        if self._decode_s:
            nearest = min(self._decode_s, key=lambda n: abs(n - n_decode))
            return self._decode_s[nearest]
        return 4 * self.prefill_s  # one token costs more alone than inside a prompt

    def begin_prompt(self) -> None:
        """Small steps are measured anew: a token costs more the further into a prompt it is."""
        self._n_small_steps = 0

    def must_join(self, n_decode: int) -> bool:
        """Whether even the smallest step of prefill would hold up ``n_decode`` sequences."""
        budget = self.prefill_budget(n_decode, 1, _STEADY_PREFILL_TOKENS)
        smallest_s = _MIN_PREFILL_TOKENS * max(self._small_prefill_s, self.prefill_s)
        return (
            budget == _MIN_PREFILL_TOKENS
            and self._n_small_steps >= _TRUSTED_STEPS
            and smallest_s > _JOIN_FACTOR * self.decode_s(n_decode)
        )

    def prefill_budget(self, n_decode: int, n_prompts: int, n_most: int) -> int:
        """Tokens of ``n_prompts`` prompts that the next step may take, at most ``n_most``,
        beside ``n_decode`` sequences that must not be held up."""
        if not n_decode:
            time_s = _MAX_BURST_STEP_S if n_prompts > 1 else _MAX_PREFILL_STEP_S
            n_tokens = int(time_s / self.prefill_s)
        else:
            time_s = _STALL_FACTOR * self.decode_s(n_decode)
            n_tokens = int(time_s / self.prefill_s)
            if n_tokens < _STEADY_PREFILL_TOKENS:
                n_tokens = int(time_s / max(self._small_prefill_s, self.prefill_s))
        return min(max(n_tokens, _MIN_PREFILL_TOKENS), n_most)


class Scheduler:
    """Keeps the waiting and the running sequences and decides about both.

    :param n_batch: most tokens of one step.
    :param n_score_tokens: most prompt tokens a step may take of one sequence whose prompt is
        scored, since each of them needs a row of logits.
    :param can_cut: as of ``SlotCache``.
    """

    def __init__(
        self, *, n_batch: int, n_score_tokens: int, times: StepTimes, can_cut: bool = True
    ) -> None:
        self._n_batch = n_batch
        self._can_cut = can_cut
        self._n_score_tokens = n_score_tokens
        self.times = times
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # in order of admission
        self._streams_waited = False  # in the step before
        self._others_turn = False  # of prompts that take turns with the oldest
        self._metered: tuple[str, int] | None = None  # the oldest prompt beside streams
        self._n_joined = 0  # steps since its steps of prefill were measured

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def waiting_in_order(self, now_s: float) -> list[Sequence]:
        """Who is to be admitted first: aged priority, then the client with the least
        running, then arrival."""
        running = collections.Counter(s.client_id for s in self.running)

        def key(s: Sequence) -> tuple[int, int, float, int]:
            aged = int(s.priority) + int((now_s - s.arrived_s) / AGEING_S)
            return (-aged, running[s.client_id], s.arrived_s, s.index)

        return sorted(self.waiting, key=key)

    def admit(self, sequence: Sequence, now_s: float) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.state = SequenceState.PREFILL
        sequence.waits_for = None
        sequence.admitted_s = now_s

    def must_wait_for_prefix(self, sequence: Sequence, n_reusable: int, min_gain: int) -> bool:
        """Whether another sequence is evaluating a longer prefix of this one right now.

        :param n_reusable: leading tokens that can be taken from a slot already.
        :param min_gain: how many tokens more the wait must save.
        """
        if not sequence.may_reuse_prefix:
            return False
        if sequence.waits_for is not None:
            other, n_shared = sequence.waits_for
            if other.state is SequenceState.PREFILL and other.n_computed < n_shared:
                return True
            sequence.waits_for = None
        best: tuple[int, Sequence] | None = None
        for other in self.running:
            if other.state is not SequenceState.PREFILL:
                continue
            if other.request_id == sequence.request_id and not other.may_reuse_prefix:
                return True  # the prompt's scores come before any choice's text
            n_shared = common_prefix_length(sequence.tokens[:-1], other.tokens)
            # A prompt's last token goes alone here (``_chunk``), so only before and after it is
            # the slot sure to hold just what is shared.
            if not self._can_cut and n_shared < len(other.tokens) - 1:
                continue
            gain = n_shared - max(n_reusable, other.n_computed)
            # Choices of one request always wait: its prompt is evaluated once.
            needed = 1 if other.request_id == sequence.request_id else min_gain
            if gain >= needed and (best is None or n_shared > best[0]):
                best = (n_shared, other)
        if best is None:
            return False
        sequence.waits_for = (best[1], best[0])
        return True

    def plan(self) -> StepPlan:
        """The next step; empty only when nothing runs.

        Every decoding sequence is in it, or else in the next one: where streams would be held
        up by a prompt, steps of decode and of prefill take turns. In one step both would cost
        more, since llama.cpp computes a batch of unequal parts in several passes. Only where even
        that holds streams up too long, prompts join their steps, a token at a time.
        """
        suspects = [s for s in self.running if s.suspect]
        if suspects:
            return self._plan_for(suspects[:1])
        return self._plan_for(self.running)

    def _plan_for(self, running: list[Sequence]) -> StepPlan:
        decode = [s for s in running if s.state is SequenceState.DECODE]
        prefilling = [s for s in running if s.state is SequenceState.PREFILL]
        n_room = self._n_batch - len(decode)
        if not prefilling:
            self._streams_waited = False
            return StepPlan(decode, [], self._forced_share(decode, [], n_room), may_draft=True)
        if not _must_not_wait(decode, prefilling):
            n_forced = self._forced_share(decode, prefilling, n_room - _MIN_PREFILL_TOKENS)
            n_room -= sum(min(s.n_pending - 1, n_forced) for s in decode)
            budget = self.times.prefill_budget(0, len(prefilling), n_room)
            # Prompts that run together end together: their last tokens need no step of their own.
            whole = len(prefilling) > 1 and self._can_cut
            prefill = self._share(prefilling, budget, whole=whole)
            # Streams wait for the others once, and all go on together. In this step they would be
            # a pass of their own, and at the end leave steps that are not full.
            must_go_on = not decode or self._streams_waited
            self._streams_waited = not must_go_on and _are_completed(prefilling, prefill)
            return StepPlan([] if self._streams_waited else decode, prefill, n_forced)
        # A prompt's last token is computed as a decoded one is.
        singles = [s for s in prefilling if s.n_pending == 1]
        prefilling = [s for s in prefilling if s.n_pending > 1]
        if prefilling:
            oldest, others = _oldest_and_others(prefilling)
            if self._must_join(len(decode), oldest):
                singles += [oldest, *(s for s in others[:1] if _may_overtake(s, oldest))]
                prefilling = []
        self._streams_waited = not self._streams_waited and bool(prefilling)
        if self._streams_waited:
            budget = self.times.prefill_budget(len(decode), len(prefilling), n_room)
            return StepPlan([], self._share(prefilling, budget))
        n_forced = self._forced_share(decode, singles, n_room - len(singles))
        return StepPlan(decode, [(sequence, 1) for sequence in singles], n_forced)

    def _must_join(self, n_decode: int, oldest: Sequence) -> bool:
        key = (oldest.request_id, oldest.index)
        if key != self._metered or self._n_joined >= _TRY_AGAIN_STEPS:
            self._metered, self._n_joined = key, 0
            self.times.begin_prompt()
        if not self.times.must_join(n_decode):
            return False
        self._n_joined += 1
        return True

    def _forced_share(self, decode: list[Sequence], prefilling: list[Sequence], n_room: int) -> int:
        """How many forced tokens each sequence that has some may add to the next step."""
        n_jumping = sum(s.n_pending > 1 for s in decode)
        n_opening = sum(bool(s.opening) and s.n_pending == 1 for s in prefilling)
        if not n_jumping + n_opening:
            return 0
        most = MAX_FORCED_TOKENS
        if len(decode) + n_opening > 1:
            budget = self.times.prefill_budget(len(decode), 1, self._n_batch)
            most = min(most, max(1, budget // (n_jumping + n_opening)))
        return max(0, min(most, n_room // (n_jumping + n_opening)))

    def _share(
        self, prefilling: list[Sequence], budget: int, *, whole: bool = False
    ) -> list[tuple[Sequence, int]]:
        """Divide the prefill budget.

        The oldest of the highest priority is sure of half of it, so that it cannot starve;
        then short prompts go first, so that they do not wait behind long ones. What is left
        goes to the oldest, or else begins the next one. Prompts are cut as rarely as that
        allows: llama.cpp computes each part in a pass of its own, and in small ones a token
        costs more. Where too little is left for any other, a much shorter one and the oldest
        take turns.

        :param whole: as for ``_chunk``.
        """
        oldest, rest = _oldest_and_others(prefilling)
        # Every token of a scored prompt needs a row of logits; one prompt at a time gets them.
        most = budget if oldest.may_reuse_prefix else self._n_score_tokens
        guaranteed = _chunk(oldest, max(1, min(most, budget // 2)), whole)
        budget -= guaranteed
        shares: list[tuple[Sequence, int]] = []
        while rest and budget >= max(1, rest[0].n_pending - 1):
            sequence = rest.pop(0)
            shares.append((sequence, _chunk(sequence, budget, whole)))
            budget -= shares[-1][1]
        left = guaranteed + budget
        if rest and not shares and left < _STEADY_PREFILL_TOKENS and _may_overtake(rest[0], oldest):
            self._others_turn = not self._others_turn
            if self._others_turn:
                return [(rest[0], _chunk(rest[0], left, whole))]
        first = _chunk(oldest, min(most, left), whole)
        budget -= first - guaranteed
        if rest and (begun := _chunk(rest[0], budget, whole)) >= _STEADY_PREFILL_TOKENS:
            shares.append((rest[0], begun))
        return [(oldest, first), *shares]

    def youngest_running(self) -> Sequence | None:
        """Whom to put back first when the KV cache is full."""
        return self.running[-1] if self.running else None

    def put_back(self, sequence: Sequence) -> None:
        """Return a running sequence to the queue; everything it has is computed again later."""
        self.running.remove(sequence)
        sequence.state = SequenceState.WAITING
        sequence.slot, sequence.n_computed = -1, 0
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that ended, wherever it is."""
        (self.waiting if sequence.state is SequenceState.WAITING else self.running).remove(sequence)
        sequence.state = SequenceState.DONE


def _oldest_and_others(prefilling: list[Sequence]) -> tuple[Sequence, list[Sequence]]:
    """The oldest of the highest priority, and who may have a part of the step beside it, the
    shortest first."""
    top = max(s.priority for s in prefilling)
    oldest = next(s for s in prefilling if s.priority == top)
    others = [s for s in prefilling if s is not oldest and s.may_reuse_prefix]
    others.sort(key=lambda s: (-s.priority, s.n_pending))
    return oldest, others


def _may_overtake(other: Sequence, oldest: Sequence) -> bool:
    return other.priority == oldest.priority and 2 * other.n_pending <= oldest.n_pending


def _must_not_wait(decode: list[Sequence], prefilling: list[Sequence]) -> bool:
    """Whether a running stream would be held up by prompts that came after it had begun.

    Requests that came together, or waited before the streams began, are a burst: its prompts
    go first at full speed, and then all of it decodes together, which is fastest for everyone.
    """
    latest_s = max(s.arrived_s for s in prefilling)
    return any(
        s.priority is Priority.REALTIME
        or (s.first_token_s is not None and s.first_token_s < latest_s)
        for s in decode
    )


def _are_completed(prefilling: list[Sequence], prefill: list[tuple[Sequence, int]]) -> bool:
    """Whether a step computes more than last tokens, and no prompt needs another such step."""
    return (
        len(prefill) == len(prefilling)
        and any(s.n_pending > 1 for s in prefilling)
        and all(s.n_pending - n_tokens <= 1 for s, n_tokens in prefill)
    )


def _chunk(sequence: Sequence, budget: int, whole: bool = False) -> int:
    """How many of a sequence's pending tokens go into the next step, at most ``budget``.

    The last one goes alone, unless ``whole``. llama.cpp's kernels round differently for one
    token than for many; this way a prompt ends with the same step whether it was cached or
    not, and gives the same text, if it runs alone.

    :param whole: the last one may go with the others, unless a grammar's opening goes with it.
    """
    if whole and not sequence.opening and sequence.n_pending <= budget:
        return sequence.n_pending
    n_before_last = sequence.n_pending - 1
    if n_before_last <= budget:
        return max(1, n_before_last)
    # Matrix kernels take rows in groups, and small remainders go another way. Whole groups, and
    # no small remainder, let a prompt be cut anywhere and still be computed the same (but for
    # parts of less than 64 tokens where the CPU computes flash attention).
    n_tokens = budget - budget % _ROW_GROUP if budget > _ROW_GROUP else budget
    if n_before_last - n_tokens < _MIN_REMAINDER and n_tokens > _MIN_REMAINDER:
        n_tokens -= _MIN_REMAINDER
    return n_tokens - 1 if n_before_last - n_tokens == 1 and n_tokens > 2 else n_tokens


def common_prefix_length(a: list[int], b: list[int]) -> int:
    """How many leading elements two lists share."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n  # a[:low] == b[:low], a[:high] != b[:high]; slices compare in C
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
