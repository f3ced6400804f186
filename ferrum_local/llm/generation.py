"""The request's side of its sequences: events in, chunks out (an ``InferenceStream``).

All work on text happens here, on the request's thread, in a :class:`ChoiceReader` each.
"""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ferrum_local.errors import Cancelled, FerrumError
from ferrum_local.llm.choice_reader import ChoiceReader
from ferrum_local.llm.sequence import (
    Admitted,
    Ended,
    Event,
    Failed,
    PromptScored,
    Sequence,
    TokenSampled,
)
from ferrum_local.llm.text_assembler import TextAssembler
from ferrum_local.request_names import request_names
from ferrum_local.types import (
    FinishReason,
    InferenceRequest,
    RequestObserver,
    StreamChunk,
    Timings,
    TokenIds,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from ferrum_local.llm.dialects.interface import OutputParser
    from ferrum_local.llm.runner import Runner


class Generation:
    """One running request. Used by one thread, but for ``close`` and ``cancel``.

    :param new_parser: makes what tells the parts of a choice apart, or None: all is content.
    :param hidden: control tokens whose text only the parser is to see.
    :param on_done: called once, when nobody waits for the request any more: it ended, failed or
        was given up. Its last step may still be running then.
    """

    def __init__(
        self,
        request: InferenceRequest,
        *,
        prompt_tokens: list[int],
        token_bytes: Callable[[int], bytes],
        new_parser: Callable[[], OutputParser | None] = lambda: None,
        hidden: Mapping[int, str] = {},
        observers: tuple[RequestObserver, ...] = (),
        on_done: Callable[[Generation, FerrumError | None], None] = lambda _g, _e: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request_id = request.id
        self.model_id = request.model_id
        self.names = request_names(request)
        self._prompt_tokens = prompt_tokens
        self._observers = observers
        self._on_done = on_done
        self._clock = clock
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        params = request.sampling_params
        self._choices = [
            ChoiceReader(i, TextAssembler(token_bytes, params.stop), new_parser(), hidden)
            for i in range(params.n)
        ]
        self._last_token_of_choice_s: list[float | None] = [None] * params.n
        self._sequences: list[Sequence] = []
        self._runner: Runner | None = None
        self._prompt_scores: list[TokenLogprob] = []
        self._n_cached = 0
        self._created_s = clock()
        self._admitted_s: float | None = None
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        self._closed = False
        self._done_reported = False

    # -- life --------------------------------------------------------------------------

    def start(self, runner: Runner, sequences: list[Sequence]) -> None:
        """Queue the sequences.

        :raises QueueFull, Unavailable: nothing runs then.
        """
        self._runner = runner
        self._sequences = sequences
        try:
            runner.submit(sequences)
        except FerrumError:
            for sequence in sequences:
                sequence.sampler.close()
            raise

    @property
    def deliver(self) -> Callable[[Event], None]:
        """Where the decode thread puts this request's events."""
        return self._events.put

    def close(self) -> None:
        """Cancel what still runs. Safe to call twice and from any thread."""
        if self._closed:
            return
        self._closed = True
        unfinished = [
            s for s, c in zip(self._sequences, self._choices, strict=False) if not c.finished
        ]
        if unfinished and self._runner is not None:
            self._runner.end(unfinished, FinishReason.CANCELLED)
        self._report_done(Cancelled("The request was cancelled.") if unfinished else None)

    def cancel(self) -> None:
        """End the request from another thread; its reader gets ``Cancelled``."""
        if self._runner is not None:
            self._runner.end(self._sequences, FinishReason.CANCELLED)

    def _report_done(self, error: FerrumError | None) -> None:
        if not self._done_reported:
            self._done_reported = True
            self._on_done(self, error)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    # -- reading -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[StreamChunk]:
        return self

    def __next__(self) -> StreamChunk:
        while True:
            chunk = self.poll(60.0)
            if chunk is not None:
                return chunk

    def poll(self, timeout_s: float) -> StreamChunk | None:
        """The next chunk; None when ``timeout_s`` passed without one.

        :raises StopIteration: after the last chunk.
        :raises FerrumError: when the request failed or was cancelled.
        """
        deadline = self._clock() + timeout_s
        while True:
            if self._closed or all(c.finished for c in self._choices):
                self._report_done(None)
                raise StopIteration
            try:
                event = self._events.get(timeout=max(0.0, deadline - self._clock()))
            except queue.Empty:
                return None
            chunk = self._take(event)
            if chunk is not None:
                return chunk

    def _take(self, event: Event) -> StreamChunk | None:
        if isinstance(event, TokenSampled):
            return self._take_token(event)
        if isinstance(event, Ended):
            return self._take_end(event)
        if isinstance(event, Admitted):
            self._take_admitted(event)
        elif isinstance(event, PromptScored):
            self._prompt_scores.extend(event.logprobs)
        elif isinstance(event, Failed):
            self._choices[event.choice].finished = True
            self._end_with(event.error)
            raise event.error
        return None

    def _end_with(self, error: FerrumError) -> None:
        """End the request because of ``error``: its other choices are cancelled."""
        self._report_done(error)
        self.close()

    def _take_admitted(self, event: Admitted) -> None:
        if self._admitted_s is None:
            self._admitted_s = event.time_s
            self._n_cached = event.n_cached
            for observer in self._observers:
                observer.on_queue_wait(self.model_id, event.time_s - self._created_s)

    def _take_token(self, event: TokenSampled) -> StreamChunk | None:
        choice = self._choices[event.choice]
        if choice.finished:  # decoded before the runner heard of the stop string
            return None
        self._note_time(event.choice, event.time_s)
        chunk = choice.push(event.token, event.logprob)
        if choice.finished and self._runner is not None:
            self._runner.end([self._sequences[event.choice]], FinishReason.STOP)
        return chunk

    def _take_end(self, event: Ended) -> StreamChunk | None:
        choice = self._choices[event.choice]
        if choice.finished:
            return None
        if event.reason is FinishReason.CANCELLED:
            choice.finished = True
            error = Cancelled("The request was cancelled.")
            self._end_with(error)
            raise error
        return choice.finish(event.reason)

    def _note_time(self, choice: int, time_s: float) -> None:
        last_s = self._last_token_of_choice_s[choice]
        if self._first_token_s is None:
            self._first_token_s = time_s
            for observer in self._observers:
                observer.on_first_token(self.model_id, time_s - self._created_s)
        elif last_s is not None:
            for observer in self._observers:
                observer.on_token_gap(self.model_id, time_s - last_s)
        self._last_token_of_choice_s[choice] = self._last_token_s = time_s

    # -- facts -------------------------------------------------------------------------

    @functools.cached_property
    def prompt_token_ids(self) -> TokenIds:
        return tuple(self._prompt_tokens)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        return tuple(self._prompt_scores)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._prompt_tokens),
            completion_tokens=sum(c.n_tokens for c in self._choices),
            cached_tokens=self._n_cached,
            reasoning_tokens=sum(c.n_reasoning_tokens for c in self._choices),
        )

    @property
    def timings(self) -> Timings:
        admitted = self._admitted_s if self._admitted_s is not None else self._clock()
        first = self._first_token_s
        n_predicted = sum(c.n_tokens for c in self._choices)
        predicted_s = (self._last_token_s or 0.0) - first if first is not None else 0.0
        prompt_end = first if first is not None else self._clock()
        return Timings(
            queue_ms=1e3 * (admitted - self._created_s),
            prompt_n=len(self._prompt_tokens) - self._n_cached,
            prompt_ms=1e3 * max(0.0, prompt_end - admitted),
            predicted_n=n_predicted,
            predicted_ms=1e3 * predicted_s,
            ttft_ms=1e3 * (first - self._created_s) if first is not None else None,
        )
