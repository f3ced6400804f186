"""One step on the decode thread: build the batch, decode it, sample what is due, deliver."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ferrum_local.errors import FerrumError, GenerationFailed
from ferrum_local.llm.context import LlamaContext
from ferrum_local.llm.logprobs import token_logprob
from ferrum_local.llm.scheduler import StepPlan, StepTimes
from ferrum_local.llm.sequence import Outbox, PromptScored, Sequence, SequenceState, TokenSampled
from ferrum_local.llm.slot_cache import SlotCache
from ferrum_local.llm.speculation import MAX_DRAFT
from ferrum_local.types import FinishReason, TokenLogprob

_NEGATIVE_INFINITY = float("-inf")
# Beside more streams a batch is bound by arithmetic, and drafts would slow the others.
_MAX_STREAMS_FOR_DRAFTS = 2

Outcome: TypeAlias = FinishReason | FerrumError


@dataclasses.dataclass
class Counters:
    """Totals since start. Written by the decode thread, read by any."""

    steps: int = 0
    prompt_tokens: int = 0
    prompt_tokens_evaluated: int = 0
    prefix_hits: int = 0
    prefix_tokens_saved: int = 0
    generated_tokens: int = 0
    draft_tokens: int = 0
    draft_tokens_accepted: int = 0
    preempted: int = 0
    cancelled: int = 0


class _Batched(NamedTuple):
    """A sequence's part of the batch: ``tokens`` end at ``last_index``, the last ``n_draft``
    of them being guesses."""

    sequence: Sequence
    tokens: list[int]
    last_index: int
    n_draft: int


class StepExecutor:
    """Runs planned steps on a context."""

    def __init__(
        self,
        context: LlamaContext,
        slots: SlotCache,
        times: StepTimes,
        counters: Counters,
        clock: Callable[[], float],
        outbox: Outbox,
    ) -> None:
        self._outbox = outbox
        self._context = context
        self._slots = slots
        self._times = times
        self._counters = counters
        self._clock = clock
        self._token_bytes = functools.partial(context.model.token_bytes, special=True)

    def run(self, plan: StepPlan) -> list[tuple[Sequence, Outcome]]:
        """Run one step.

        :returns: the sequences that ended with it, and how.
        :raises DecodeError: nothing was accounted for; slots may hold part of the batch.
        """
        batch = self._build(plan)
        self._outbox.flush()
        started = self._clock()
        self._context.decode()
        step_s = self._clock() - started
        self._counters.steps += 1
        n_decode = len(plan.decode)
        if not any(entry.n_draft for entry in batch):  # guesses are neither of the two kinds
            self._times.record(n_decode, self._context.n_batched - n_decode, step_s)
        ended: list[tuple[Sequence, Outcome]] = []
        for entry in batch:
            outcome = self._advance(entry)
            if outcome is not None:
                ended.append((entry.sequence, outcome))
        return ended

    def _build(self, plan: StepPlan) -> list[_Batched]:
        self._context.clear_batch()
        batch: list[_Batched] = []
        for sequence in plan.decode:
            draft = self._draft(sequence, plan)
            tokens = [*sequence.tokens[sequence.n_computed :], *draft]
            batch.append(self._add(sequence, tokens, "all" if draft else "last", len(draft)))
        for sequence, n_tokens in plan.prefill:
            tokens = sequence.tokens[sequence.n_computed : sequence.n_computed + n_tokens]
            is_last = n_tokens == sequence.n_pending
            output = "all" if _is_scoring(sequence) else "last" if is_last else "none"
            batch.append(self._add(sequence, tokens, output, 0))
        return batch

    def _add(self, sequence: Sequence, tokens: list[int], output: str, n_draft: int) -> _Batched:
        last_index = self._context.add_tokens(
            sequence.slot, tokens, sequence.n_computed, output=output
        )
        return _Batched(sequence, tokens, last_index, n_draft)

    def _draft(self, sequence: Sequence, plan: StepPlan) -> list[int]:
        n_decode = len(plan.decode)
        if sequence.speculator is None or not plan.may_draft or n_decode > _MAX_STREAMS_FOR_DRAFTS:
            return []
        n_left = sequence.max_tokens - sequence.n_generated - 1
        return sequence.speculator.propose(sequence.slot, sequence.tokens, min(n_left, MAX_DRAFT))

    def _advance(self, entry: _Batched) -> Outcome | None:
        """Account for a sequence's tokens; sample when all of it is computed."""
        sequence = entry.sequence
        if sequence.state is SequenceState.PREFILL:
            self._counters.prompt_tokens_evaluated += len(entry.tokens)
        sequence.suspect = False
        n_certain = len(entry.tokens) - entry.n_draft
        self._compute(sequence, entry.tokens[:n_certain])
        if _is_scoring(sequence):
            self._score_prompt(sequence, entry.last_index - n_certain + 1, n_certain)
        if sequence.n_pending:
            return None
        sequence.state = SequenceState.DECODE
        if sequence.n_generated >= sequence.max_tokens:
            # Only a request for no new tokens (prompt scoring) gets here without sampling.
            return FinishReason.LENGTH
        return self._sample_along(entry)

    def _compute(self, sequence: Sequence, tokens: list[int]) -> None:
        """Note that the slot holds ``tokens`` now."""
        if tokens:
            self._slots.append(sequence.slot, tokens)
            sequence.n_computed += len(tokens)

    def _sample_along(self, entry: _Batched) -> Outcome | None:
        """Sample the next token, and go on for as long as it is what the draft guessed."""
        sequence = entry.sequence
        n_before = len(sequence.tokens)
        index = entry.last_index - entry.n_draft
        draft = entry.tokens[len(entry.tokens) - entry.n_draft :]
        n_accepted = 0
        outcome = self._sample(sequence, index)
        while outcome is None and n_accepted < len(draft):
            if sequence.tokens[-1] != draft[n_accepted]:
                break
            n_accepted += 1
            outcome = self._sample(sequence, index + n_accepted)
        if entry.n_draft:
            self._compute(sequence, draft[:n_accepted])
            if not self._context.truncate_slot(sequence.slot, sequence.n_computed):
                # Rejected guesses must not stay: compute the sequence again.
                self._context.clear_slot(sequence.slot)
                self._slots.forget(sequence.slot)
                sequence.restart()
            self._counters.draft_tokens += entry.n_draft
            self._counters.draft_tokens_accepted += n_accepted
        if sequence.speculator is not None:
            sequence.speculator.observe(sequence.tokens[n_before:])
        return outcome

    def _sample(self, sequence: Sequence, batch_index: int) -> Outcome | None:
        """Draw one token and deliver it; the outcome when it ends the sequence."""
        logits = self._context.logits(batch_index)
        # To numpy NaN is the greatest. Sampling from NaN would abort in native code.
        token = int(logits.argmax())
        if math.isnan(logits[token]):
            return GenerationFailed("The model produced invalid numbers (NaN).")
        original = logits.copy() if sequence.n_logprobs is not None else None
        may_end = sequence.n_generated >= sequence.min_tokens
        if not may_end:
            logits[list(sequence.eog_tokens)] = _NEGATIVE_INFINITY
        if not (may_end and sequence.sampler.is_argmax):
            token = sequence.sampler.sample(self._context.handle, batch_index)
        if token in sequence.eog_tokens:
            return FinishReason.STOP
        logprob = None
        if original is not None:
            logprob = token_logprob(original, token, sequence.n_logprobs or 0, self._token_bytes)
        sequence.tokens.append(token)
        self._counters.generated_tokens += 1
        now = self._clock()
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        self._outbox.post(sequence, TokenSampled(sequence.index, token, logprob, now))
        return FinishReason.LENGTH if sequence.n_generated >= sequence.max_tokens else None

    def _score_prompt(self, sequence: Sequence, first_index: int, n_tokens: int) -> None:
        """Deliver log-probabilities: each position's logits judge the token after it."""
        n_top = sequence.n_prompt_logprobs or 0
        scores: list[TokenLogprob] = []
        if sequence.n_scored == 0:  # nothing precedes the first token
            first = sequence.tokens[0]
            scores.append(TokenLogprob(first, self._token_bytes(first), None))
        first_position = sequence.n_computed - n_tokens
        for i in range(n_tokens):
            position = first_position + i + 1
            if sequence.n_scored <= position < sequence.n_prompt:
                logits = self._context.logits(first_index + i)
                scores.append(
                    token_logprob(logits, sequence.tokens[position], n_top, self._token_bytes)
                )
        sequence.n_scored += len(scores)
        self._outbox.post(sequence, PromptScored(scores))


def _is_scoring(sequence: Sequence) -> bool:
    return sequence.n_prompt_logprobs is not None and sequence.n_scored < sequence.n_prompt
