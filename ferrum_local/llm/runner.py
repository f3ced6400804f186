"""The decode thread: inbox → schedule → decode → sample → deliver.

It alone touches the ``llama_context``. Other threads hand it messages and get events;
no text, template or JSON is handled here.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from ferrum_local.errors import (
    DeadlineExceeded,
    FerrumError,
    GenerationFailed,
    QueueFull,
    Unavailable,
)
from ferrum_local.llm.context import DecodeError, LlamaContext
from ferrum_local.llm.prompt_cache import PromptCache
from ferrum_local.llm.scheduler import Scheduler, StepPlan
from ferrum_local.llm.sequence import (
    Admitted,
    Ended,
    Failed,
    Outbox,
    Sequence,
    SequenceState,
)
from ferrum_local.llm.slot_cache import MIN_COPY_TOKENS, SlotCache
from ferrum_local.llm.slot_filler import SlotFiller
from ferrum_local.llm.slot_gathering import SlotGatherer
from ferrum_local.llm.step import Counters, StepExecutor
from ferrum_local.types import FinishReason

logger = logging.getLogger(__name__)

_NO_ROOM, _ABORTED = 1, 2  # DecodeError.status


class _Submit(NamedTuple):
    sequences: list[Sequence]


class _Wake(NamedTuple):
    """Look at the ``end_requested`` flags."""


class _Call(NamedTuple):
    """Run something on the decode thread, between steps."""

    function: Callable[[], None]


class _Stop(NamedTuple):
    error: FerrumError


_Message: TypeAlias = _Submit | _Wake | _Call | _Stop


class Runner:
    """Runs sequences on a context until stopped.

    :param max_queue: requests that may wait for a slot; one more is refused.
    :param clock: monotonic seconds; the times in events and sequences are of this clock.
    """

    def __init__(
        self,
        context: LlamaContext,
        slots: SlotCache,
        scheduler: Scheduler,
        *,
        max_queue: int,
        prompt_cache: PromptCache | None = None,
        name: str = "llm",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context = context
        self._slots = slots
        self._scheduler = scheduler
        self._max_queue = max_queue
        self._clock = clock
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._queue_lock = threading.Lock()
        self._queued: dict[str, int] = {}  # request id -> its sequences without a slot
        self._stop_error: FerrumError | None = None
        self._request_s = 1.0  # smoothed seconds from admission to end, for Retry-After
        self._in_step: list[Sequence] = []
        self.counters = Counters()
        self._filler = SlotFiller(context, slots, prompt_cache or PromptCache(0))
        self._gatherer = SlotGatherer(slots, self._filler) if slots.can_cut else None
        self._outbox = Outbox()
        self._executor = StepExecutor(
            context, slots, scheduler.times, self.counters, clock, self._outbox
        )
        self._thread = threading.Thread(target=self._run, name=f"decode-{name}", daemon=True)

    # -- any thread ----------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def n_queued(self) -> int:
        """Requests waiting for a slot."""
        return len(self._queued)

    @property
    def n_running(self) -> int:
        """Sequences that have a slot."""
        return len(self._scheduler.running)

    def submit(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of one request.

        :raises QueueFull: when ``max_queue`` requests wait already.
        :raises Unavailable: when the runner was stopped.
        """
        with self._queue_lock:
            self._check_open()
            self._queued[sequences[0].request_id] = len(sequences)
            # With the lock held, so that nothing can be put behind the message to stop.
            self._inbox.put(_Submit(sequences))

    def check_open(self) -> None:
        """Raise what ``submit`` would raise now, before any work went into a request."""
        with self._queue_lock:
            self._check_open()

    def _check_open(self) -> None:
        if self._stop_error is not None:
            raise self._stop_error
        # A request that finds a free slot does not wait, so a full queue of length 0
        # still lets requests run.
        busy = len(self._queued) + len(self._scheduler.running)
        if len(self._queued) >= self._max_queue and busy >= self._slots.n_slots:
            raise QueueFull(
                f"{len(self._queued)} requests are waiting already (--max-queue "
                f"{self._max_queue}); try again later",
                retry_after_s=self._expected_wait_s(),
            )

    def _expected_wait_s(self) -> float:
        return (len(self._queued) + 1) * self._request_s / self._slots.n_slots

    def end(self, sequences: Iterable[Sequence], reason: FinishReason) -> None:
        """End sequences within one step; they get no further event but ``Ended``."""
        for sequence in sequences:
            sequence.end_requested = reason
        in_step = self._in_step
        if in_step and all(s.end_requested is not None for s in in_step):
            self._context.abort()
        self._inbox.put(_Wake())

    def call(self, function: Callable[[], None], timeout_s: float = 30.0) -> None:
        """Run ``function`` on the decode thread between steps and wait for it.

        :raises TimeoutError: when no step ended in time.
        """
        done = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                function()
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        with self._queue_lock:
            if self._stop_error is not None:
                raise self._stop_error
            self._inbox.put(_Call(run))
        if not done.wait(timeout_s):
            raise TimeoutError("the decode thread did not answer in time")
        if failure:
            raise failure[0]

    def stop(self, error: FerrumError | None = None) -> None:
        """Fail everything with ``error``, end the thread and wait for it."""
        reason = error or Unavailable("The server is shutting down.", retry_after_s=5)
        with self._queue_lock:
            self._stop_error = reason
            self._inbox.put(_Stop(reason))
        self._context.abort()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Compare the prefix tree, the slots and llama.cpp's own positions.

        :raises AssertionError: with what disagrees.
        """
        self.call(self._check_now)

    # -- decode thread ---------------------------------------------------------------

    def _run(self) -> None:
        while self._read_inbox():
            try:
                self._reap()
                if not self._context.is_alive:
                    self._rebuild()
                self._admit()
                self._gather()
                plan = self._scheduler.plan()
                if plan.decode or plan.prefill:
                    self._step(plan)
                else:
                    self._outbox.flush()
            except Exception as error:  # the thread must outlive any fault of ours
                logger.exception("the decode thread failed; running requests end with an error")
                self._fail_running(error)
        self._outbox.flush()
        try:
            self._filler.save_all()
        finally:
            self._context.close()

    def _read_inbox(self) -> bool:
        """Take all messages, waiting for one when there is nothing else to do."""
        block = not self._scheduler.has_work
        if block:
            self._outbox.flush()
        while True:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return True
            block = False
            if isinstance(message, _Submit):
                self._scheduler.waiting.extend(message.sequences)
                self.counters.prompt_tokens += message.sequences[0].n_prompt
            elif isinstance(message, _Call):
                message.function()
            elif isinstance(message, _Stop):
                for sequence in [*self._scheduler.waiting, *self._scheduler.running]:
                    self._fail(sequence, message.error)
                return False

    def _reap(self) -> None:
        """End what was cancelled or is out of time."""
        now = self._clock()
        cancelled: set[str] = set()  # requests: all choices of one are cancelled together
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            if sequence.end_requested is not None:
                if sequence.end_requested is FinishReason.CANCELLED:
                    cancelled.add(sequence.request_id)
                self._end(sequence, sequence.end_requested)
            elif sequence.deadline_at_s is not None and now > sequence.deadline_at_s:
                self._fail(sequence, DeadlineExceeded("The request's time limit passed."))
        self.counters.cancelled += len(cancelled)

    def _admit(self) -> None:
        """Give free slots to waiting sequences, reusing what is cached."""
        if not self._scheduler.waiting or not self._slots.n_free:
            return
        for sequence in self._scheduler.waiting_in_order(self._clock()):
            n_reusable = self._filler.reusable(sequence)
            if self._scheduler.must_wait_for_prefix(sequence, n_reusable, MIN_COPY_TOKENS):
                continue
            try:
                filled = self._filler.fill(sequence)
            except Exception:  # memory or disk: one request's trouble, not everyone's
                logger.exception("moving the KV cache for %s failed", sequence.request_id)
                self._fail(sequence, GenerationFailed("The KV cache could not be prepared."))
                continue
            if not filled:
                return
            self._scheduler.admit(sequence, self._clock())
            self._leave_queue(sequence)
            if sequence.n_computed and sequence.index == 0 and not sequence.n_generated:
                self.counters.prefix_hits += 1
                self.counters.prefix_tokens_saved += sequence.n_computed
            self._outbox.post(
                sequence, Admitted(sequence.index, sequence.n_computed, self._clock())
            )

    def _gather(self) -> None:
        if self._gatherer is not None:
            self.counters.moved += self._gatherer.gather(self._scheduler.running)

    def _step(self, plan: StepPlan) -> None:
        self._in_step = plan.sequences
        try:
            outcomes = self._executor.run(plan)
        except DecodeError as error:
            self._recover(error, self._in_step)
            return
        finally:
            self._in_step = []
        for sequence, outcome in outcomes:
            if isinstance(outcome, FinishReason):
                self._end(sequence, outcome)
            else:
                self._fail(sequence, outcome)

    # -- ends and faults -----------------------------------------------------------------

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        self._dispose(sequence)
        self._outbox.post(sequence, Ended(sequence.index, reason, self._clock()))

    def _fail(self, sequence: Sequence, error: FerrumError) -> None:
        self._dispose(sequence)
        self._outbox.post(sequence, Failed(sequence.index, error))

    def _dispose(self, sequence: Sequence) -> None:
        """Free the slot (its content stays as cache) and everything native."""
        if sequence.state is SequenceState.WAITING:
            self._leave_queue(sequence)
        else:
            self._slots.release(sequence.slot)
            ran_s = self._clock() - sequence.admitted_s
            self._request_s += 0.2 * (ran_s - self._request_s)
        self._scheduler.remove(sequence)
        sequence.sampler.close()

    def _leave_queue(self, sequence: Sequence) -> None:
        with self._queue_lock:
            left = self._queued.get(sequence.request_id, 0) - 1
            if left > 0:
                self._queued[sequence.request_id] = left
            else:
                self._queued.pop(sequence.request_id, None)

    def _recover(self, error: DecodeError, sequences: list[Sequence]) -> None:
        """Bring the slots back to what they held before a step that did not succeed."""
        if error.status == _ABORTED:
            self._restore_slots(sequences)
        elif error.status == _NO_ROOM:
            self._restore_slots(sequences)
            self._make_room()
        else:
            self._isolate_fault(error, sequences)

    def _restore_slots(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if not self._context.truncate_slot(sequence.slot, sequence.n_computed):
                self._filler.empty(sequence.slot)
                sequence.restart()

    def _make_room(self) -> None:
        """The KV cache is full: the youngest sequence waits and is computed again later."""
        youngest = self._scheduler.youngest_running()
        if youngest is None or len(self._scheduler.running) == 1:
            self._fail_running(GenerationFailed("The KV cache has no room for this request."))
            return
        slot = youngest.slot
        self._slots.release(slot)
        self._filler.empty(slot)
        self._scheduler.put_back(youngest)
        with self._queue_lock:
            waiting = self._queued.get(youngest.request_id, 0)
            self._queued[youngest.request_id] = waiting + 1
        self.counters.preempted += 1

    def _isolate_fault(self, error: DecodeError, sequences: list[Sequence]) -> None:
        """A bad batch must fail only the sequence at fault.

        A sequence that fails alone is the culprit. Otherwise each one of the batch runs
        alone once, on a fresh context, until it has succeeded.
        """
        logger.error("%s; the context is rebuilt", error)
        if len(sequences) == 1:
            self._fail(sequences[0], GenerationFailed(f"The model could not go on ({error})."))
        self._rebuild()
        for sequence in self._scheduler.running:
            sequence.restart()
        for sequence in sequences:
            sequence.suspect = sequence.state is not SequenceState.DONE

    def _rebuild(self) -> None:
        """Start with an empty context; if there is no memory even for that, nothing can run."""
        for slot in range(self._slots.n_slots):
            self._slots.forget(slot)
        try:
            self._context.rebuild()
        except FerrumError as error:
            logger.error("The context cannot be made again: %s", error.message)
            for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
                self._fail(sequence, GenerationFailed(error.message))

    def _fail_running(self, cause: Exception) -> None:
        error = (
            cause
            if isinstance(cause, FerrumError)
            else GenerationFailed("An internal error ended this request.")
        )
        for sequence in list(self._scheduler.running):
            slot = sequence.slot
            self._fail(sequence, error)
            self._filler.empty(slot)

    def _check_now(self) -> None:
        self._slots.check()
        for slot in range(self._slots.n_slots):
            _, last = self._context.slot_positions(slot)
            held = self._slots.length(slot)
            assert held == last + 1, (
                f"slot {slot}: the tree says {held} tokens, llama.cpp {last + 1}"
            )
        for sequence in self._scheduler.running:
            tokens = self._slots.tokens(sequence.slot)
            assert tokens == sequence.tokens[: sequence.n_computed], (
                f"slot {sequence.slot} does not hold its sequence's tokens"
            )
