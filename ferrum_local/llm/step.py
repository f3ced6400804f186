"""One step on the decode thread: build the batch, decode it, sample what is due, deliver."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ferrum_local.errors import FerrumError, GenerationFailed
from ferrum_local.llm.constraint import Matcher, TokenMasks, is_fault
from ferrum_local.llm.context import LlamaContext
from ferrum_local.llm.logprobs import token_logprob
from ferrum_local.llm.scheduler import StepPlan, StepTimes, common_prefix_length
from ferrum_local.llm.sequence import Outbox, PromptScored, Sequence, SequenceState, TokenSampled
from ferrum_local.llm.slot_cache import SlotCache
from ferrum_local.llm.speculation import MAX_DRAFT, DraftPlan, Speculator
from ferrum_local.types import FinishReason, TokenLogprob

logger = logging.getLogger(__name__)

_NEGATIVE_INFINITY = float("-inf")

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
    moved: int = 0  # running sequences, to a neighbouring slot
    cancelled: int = 0


class _Part(NamedTuple):
    """What goes into the batch for a sequence; ``output`` as for ``add_tokens``."""

    sequence: Sequence
    tokens: list[int]
    output: str
    n_draft: int


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

    @functools.cached_property
    def _masks(self) -> TokenMasks:
        options = self._context.options
        return TokenMasks(options.n_slots, self._context.model, options.n_threads)

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
        self._fill_masks(batch)
        ended: list[tuple[Sequence, Outcome]] = []
        for entry in batch:
            outcome = self._advance(entry)
            if outcome is not None:
                ended.append((entry.sequence, outcome))
        return ended

    def _build(self, plan: StepPlan) -> list[_Batched]:
        parts: list[_Part] = []
        drafts = self._drafts(plan.decode) if plan.may_draft else [[]] * len(plan.decode)
        for sequence, draft in zip(plan.decode, drafts, strict=True):
            end = sequence.n_computed + 1 + plan.n_forced
            tokens = [*sequence.tokens[sequence.n_computed : end], *draft]
            parts.append(_Part(sequence, tokens, "all" if draft else "last", len(draft)))
        n_room = self._context.options.n_batch - sum(len(part.tokens) for part in parts)
        n_room -= sum(n_tokens for _, n_tokens in plan.prefill)
        for sequence, n_tokens in plan.prefill:
            if sequence.opening and n_tokens == sequence.n_pending:
                n_more = self._open(sequence, min(plan.n_forced, n_room))
                n_room -= n_more
                n_tokens += n_more
            tokens = sequence.tokens[sequence.n_computed : sequence.n_computed + n_tokens]
            is_last = n_tokens == sequence.n_pending
            output = "all" if _is_scoring(sequence) else "last" if is_last else "none"
            parts.append(_Part(sequence, tokens, output, 0))
        parts.sort(key=_pass_order)
        self._context.clear_batch()
        return [self._add(part) for part in parts]

    def _add(self, part: _Part) -> _Batched:
        sequence, tokens, output, n_draft = part
        last_index = self._context.add_tokens(
            sequence.slot, tokens, sequence.n_computed, output=output
        )
        return _Batched(sequence, tokens, last_index, n_draft)

    def _open(self, sequence: Sequence, n_most: int) -> int:
        """Add to a prompt that is about to be complete what its grammar begins with.

        Its last token then always goes in with the same ones, cached or not, as ``_chunk`` wants.

        :param n_most: how many more tokens than planned may go into this step.
        :returns: how many do.
        """
        sequence.tokens += sequence.opening
        if sequence.speculator is not None:
            sequence.speculator.observe(sequence.opening)
        n_more = min(len(sequence.opening), n_most)
        sequence.opening = []
        return n_more

    def _drafts(self, streams: list[Sequence]) -> list[list[int]]:
        """Guesses to evaluate with each stream's next token: equally many of all, or none.

        Guesses of some would hold up the others, and parts of unequal length would be computed
        in several passes.
        """
        n_streams = len(streams)
        none: list[list[int]] = [[]] * n_streams
        n_room = self._context.options.n_batch // max(n_streams, 1) - 1
        plans: list[tuple[Sequence, Speculator, DraftPlan]] = []
        for sequence in streams:
            speculator = sequence.speculator
            # Every token of a draft needs a row of logits, which those of a jump do not have.
            if speculator is None or sequence.n_pending > 1:
                return none
            plan = speculator.plan(n_streams, min(sequence.n_left - 1, n_room, MAX_DRAFT))
            if not plan.n_tokens:
                return none
            plans.append((sequence, speculator, plan))
        n_guesses = min((plan.n_tokens for *_, plan in plans), default=0)
        drafts: list[list[int]] = []
        for sequence, speculator, plan in plans:
            plan = plan._replace(n_tokens=n_guesses)
            draft = speculator.draft(plan, sequence.slot, sequence.tokens)
            if sequence.matcher is not None:
                draft = draft[: sequence.matcher.n_possible(draft)]
            n_guesses = min(n_guesses, len(draft))
            drafts.append(draft)
            if not n_guesses:  # the models of the others need not guess
                for _, planned, _ in plans:
                    planned.discard()
                return none
        return [draft[:n_guesses] for draft in drafts]

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
        self._deliver_first_forced(sequence)
        # A request for no new tokens (prompt scoring), or one whose answer was forced.
        outcome = self._outcome_before_sampling(sequence)
        return self._sample_along(entry) if outcome is None else outcome

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
        outcome = self._sample(sequence, index)
        new = sequence.tokens[n_before:]
        while outcome is None and len(new) <= len(draft) and draft[: len(new)] == new:
            outcome = self._sample(sequence, index + len(new))
            new = sequence.tokens[n_before:]
        n_accepted = common_prefix_length(draft, new)
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
        original = logits.copy() if sequence.n_logprobs is not None else None
        sequence.sampler.add_biases(logits)
        # To numpy NaN is the greatest. Sampling from NaN would abort in native code.
        token = int(logits.argmax())
        if math.isnan(logits[token]):
            return GenerationFailed("The model produced invalid numbers (NaN).")
        may_end = sequence.n_generated >= sequence.min_tokens
        matcher = sequence.matcher
        try:
            if matcher is not None:
                token = self._choose(sequence, matcher, logits, batch_index, may_end)
            else:
                if not may_end:
                    logits[list(sequence.eog_tokens)] = _NEGATIVE_INFINITY
                if not (may_end and sequence.sampler.is_argmax):
                    token = sequence.sampler.sample(self._context.handle, batch_index)
            if token in sequence.eog_tokens:
                return FinishReason.STOP
            logprob = None
            if original is not None:
                n_top = sequence.n_logprobs or 0
                logprob = token_logprob(original, token, n_top, self._token_bytes)
            sequence.tokens.append(token)
            self._deliver(sequence, token, logprob)
            if matcher is not None:
                matcher.accept(token)
                self._jump(sequence, matcher)
        except BaseException as error:
            if matcher is None or not is_fault(error):
                raise
            return _failure(error)
        return self._outcome_before_sampling(sequence)

    def _choose(
        self,
        sequence: Sequence,
        matcher: Matcher,
        logits: npt.NDArray[np.float32],
        batch_index: int,
        may_end: bool,
    ) -> int:
        """Draw a token that the grammar allows. Its logits are changed in place."""
        if not sequence.may_jump:
            # Drawn tokens, and so the text, are the same with log-probabilities as without.
            forced = matcher.next_forced()
            if forced is not None:
                sequence.sampler.accept(forced)
                return forced
        token = self._masks.apply(matcher, sequence.slot, logits, may_end=may_end)
        if sequence.sampler.is_argmax:
            return token
        return sequence.sampler.sample(self._context.handle, batch_index)

    def _jump(self, sequence: Sequence, matcher: Matcher) -> None:
        """Add what the grammar forces; the next step evaluates it together."""
        if not sequence.may_jump:
            return
        for token in matcher.take_forced(sequence.n_left):
            sequence.tokens.append(token)
            sequence.sampler.accept(token)
            self._deliver(sequence, token, None)

    def _deliver(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        self._counters.generated_tokens += 1
        now = self._clock()
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        self._outbox.post(sequence, TokenSampled(sequence.index, token, logprob, now))

    def _deliver_first_forced(self, sequence: Sequence) -> None:
        """What the grammar begins with was evaluated with the prompt."""
        if sequence.first_token_s is None:
            for token in sequence.tokens[sequence.n_prompt :]:
                self._deliver(sequence, token, None)

    def _outcome_before_sampling(self, sequence: Sequence) -> FinishReason | None:
        if sequence.matcher is not None and sequence.matcher.is_finished:
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.n_generated >= sequence.max_tokens else None

    def _fill_masks(self, batch: list[_Batched]) -> None:
        """Compute the masks of all sequences that will be sampled, side by side."""
        rows = [
            (entry.sequence.matcher, entry.sequence.slot)
            for entry in batch
            if entry.sequence.matcher is not None and _will_sample(entry)
        ]
        if not rows:
            return
        try:
            self._masks.fill(rows)
        except BaseException as error:
            if not is_fault(error):
                raise
            # Each is filled alone when it is needed, and then only the one at fault fails.
            logger.error("computing masks together failed", exc_info=error)

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


def _pass_order(part: _Part) -> tuple[bool, int, int]:
    """Sorts a batch so that llama.cpp computes it in few passes.

    Each pass reads all weights. Of equally many tokens each, slots that follow one another in
    rising order share a pass; of unequally many, they would share their first tokens and leave
    small rests, each a pass of its own. So parts of equal length stand together, decoded tokens
    first. Eight decoding slots in falling order took 97 ms where 42 do.
    """
    return (len(part.tokens) > 1, -len(part.tokens), part.sequence.slot)


def _will_sample(entry: _Batched) -> bool:
    sequence = entry.sequence
    is_last = len(entry.tokens) - entry.n_draft == sequence.n_pending
    return is_last and sequence.n_generated < sequence.max_tokens


def _failure(error: BaseException) -> FerrumError:
    if isinstance(error, FerrumError):
        return error
    logger.error("matching a grammar failed", exc_info=error)
    return GenerationFailed("The answer could not be matched with its grammar.")


def _is_scoring(sequence: Sequence) -> bool:
    return sequence.n_prompt_logprobs is not None and sequence.n_scored < sequence.n_prompt
