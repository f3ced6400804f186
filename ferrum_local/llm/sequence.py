"""State of one running generation, and the events it sends to its request's thread."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ferrum_local.errors import FerrumError
from ferrum_local.llm.sampling import Sampler
from ferrum_local.types import FinishReason, Priority, TokenLogprob

if TYPE_CHECKING:
    from ferrum_local.llm.constraint import Matcher
    from ferrum_local.llm.speculation import Speculator


class Admitted(NamedTuple):
    """The sequence has a slot; ``n_cached`` prompt tokens need not be evaluated."""

    choice: int
    n_cached: int
    time_s: float


class PromptScored(NamedTuple):
    """Log-probabilities of the next prompt tokens, in order."""

    logprobs: list[TokenLogprob]


class TokenSampled(NamedTuple):
    choice: int
    token: int
    logprob: TokenLogprob | None
    time_s: float


class Ended(NamedTuple):
    choice: int
    reason: FinishReason
    time_s: float


class Failed(NamedTuple):
    choice: int
    error: FerrumError


Event: TypeAlias = Admitted | PromptScored | TokenSampled | Ended | Failed


class Outbox:
    """Events that are ready but not sent. Decode thread only.

    Sending wakes a request's thread, which then wants the interpreter lock. Between two samples
    of one step that would hold up the decode thread; sent together right before the next native
    decode, which needs no lock, it holds up nobody.
    """

    def __init__(self) -> None:
        self._events: list[tuple[Callable[[Event], None], Event]] = []

    def post(self, sequence: Sequence, event: Event) -> None:
        self._events.append((sequence.deliver, event))

    def flush(self) -> None:
        """Send everything, in order."""
        events, self._events = self._events, []
        for deliver, event in events:
            deliver(event)


class SequenceState(enum.Enum):
    WAITING = "waiting"  # no slot yet
    PREFILL = "prefill"  # prompt (or, after a preemption, everything so far) being evaluated
    DECODE = "decode"  # one new token a step, and those that a grammar forces
    DONE = "done"


@dataclasses.dataclass(eq=False)
class Sequence:
    """One generation. Owned by the decode thread, but for ``end_requested``.

    ``tokens`` is the prompt and then what was generated; the first ``n_computed`` of them
    have KV entries in ``slot``. Times are seconds of the runner's monotonic clock.

    With a ``matcher``, tokens that its grammar forces are generated without being sampled.
    Those it begins with, the ``opening``, are evaluated together with the last prompt token.
    """

    request_id: str
    index: int
    tokens: list[int]
    n_prompt: int
    max_tokens: int  # of new ones; already cut to what the context has room for
    min_tokens: int
    eog_tokens: frozenset[int]
    sampler: Sampler
    deliver: Callable[[Event], None]
    priority: Priority = Priority.INTERACTIVE
    client_id: str = ""
    arrived_s: float = 0.0
    deadline_at_s: float | None = None
    n_logprobs: int | None = None
    n_prompt_logprobs: int | None = None
    speculator: Speculator | None = None
    matcher: Matcher | None = None
    opening: list[int] = dataclasses.field(default_factory=list)

    state: SequenceState = SequenceState.WAITING
    slot: int = -1
    n_computed: int = 0
    n_scored: int = 0  # prompt tokens whose log-probabilities were delivered
    admitted_s: float = 0.0
    first_token_s: float | None = None
    end_requested: FinishReason | None = None  # set by any thread, read between steps
    suspect: bool = False  # was in a batch that failed: runs alone until a step succeeds
    waits_for: tuple[Sequence, int] | None = None  # another's prefill, up to so many tokens

    def restart(self) -> None:
        """Its slot lost what it held: all tokens so far are evaluated again."""
        self.n_computed, self.state = 0, SequenceState.PREFILL

    @property
    def n_generated(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def n_pending(self) -> int:
        """Tokens that still need a KV entry before the next one can be sampled."""
        return len(self.tokens) - self.n_computed

    @property
    def n_left(self) -> int:
        """New tokens that may still come."""
        return self.max_tokens - self.n_generated

    @property
    def may_jump(self) -> bool:
        """Whether forced tokens need no row of logits each, as log-probabilities would."""
        return self.n_logprobs is None

    @property
    def may_reuse_prefix(self) -> bool:
        """Scoring the prompt needs the logits of every position, so nothing can be skipped."""
        return self.n_prompt_logprobs is None
