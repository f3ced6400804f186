"""The engine requests of one HTTP call, run side by side."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ferrum_local.engine.assembly import ResponseAssembler
from ferrum_local.engine.contracts import Engine, InferenceStream
from ferrum_local.errors import Cancelled, InvalidRequest, QueueFull
from ferrum_local.types import (
    InferenceRequest,
    InferenceResponse,
    StreamChunk,
    Timings,
    Usage,
)

TICK_S = 0.25  # how long nothing may come before the caller gets a turn
SHARED_TICK_S = 0.02  # the same while other streams might speak meanwhile


class ParallelStreams:
    """Several streams read as one. ``i`` below is a request's place in ``requests``.

    All are started at once, as far as the engine's queue takes them; the rest follows as
    others end. A refusal of any closes all. Use it as a context manager: leaving cancels
    what still runs.
    """

    def __init__(self, engine: Engine, requests: Sequence[InferenceRequest]) -> None:
        """:raises FerrumError: what the engine refuses is refused here, before any chunk."""
        self._engine = engine
        self._are_many = len(requests) > 1
        self._waiting = deque(enumerate(requests))
        self._streams: dict[int, InferenceStream] = {}
        self._running: dict[int, InferenceStream] = {}
        self.n_choices = sum(r.sampling_params.n for r in requests)
        try:
            self._start()
            # The rest is checked now as well: an error must come before the first byte.
            for i, request in self._waiting:
                try:
                    engine.validate(request)
                except InvalidRequest as error:
                    raise self._naming_prompt(error, i) from error
        except BaseException:
            self.close()
            raise

    def chunks(self) -> Iterator[tuple[int, StreamChunk] | None]:
        """Yield ``(i, chunk)`` as they come, and None when nothing came for a moment.

        :raises FerrumError: when one of the requests failed.
        """
        speaker = 0  # streams that decode together speak together: best waited on
        while self._running or self._waiting:
            if not self._running:  # others filled the queue when this call's streams ended
                time.sleep(TICK_S)
                self._start()
                yield None
                continue
            spoke = False
            alone = len(self._running) == 1
            for i in tuple(self._running):
                chunk = self._poll(i, TICK_S if alone else 0.0)
                if chunk is not None:
                    spoke, speaker = True, i
                    yield i, chunk
            if spoke or not self._running:
                continue
            if not alone:
                speaker = speaker if speaker in self._running else next(iter(self._running))
                chunk = self._poll(speaker, SHARED_TICK_S)
                if chunk is not None:
                    yield speaker, chunk
                    continue
            yield None

    def stream(self, i: int) -> InferenceStream:
        return self._streams[i]

    @property
    def usage(self) -> Usage:
        """Sums over all requests; final once ``chunks`` ended."""
        return total_usage([s.usage for s in self._streams.values()])

    @property
    def timings(self) -> Timings:
        return joint_timings([s.timings for s in self._streams.values()])

    def close(self) -> None:
        self._waiting.clear()
        for stream in self._running.values():
            stream.close()
        self._running.clear()

    def __enter__(self) -> ParallelStreams:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _naming_prompt(self, error: InvalidRequest, i: int) -> InvalidRequest:
        """Say which of several prompts is at fault."""
        param = error.param or ""
        if not self._are_many or not (param or "prompt").startswith("prompt"):
            return error
        rest = param.removeprefix("prompt") if param.startswith("prompt") else ""
        where = f"prompt[{i}]{rest}"
        message = error.message.removeprefix(f"{param}: ")
        return InvalidRequest(f"{where}: {message}", param=where, code=error.code)

    def _poll(self, i: int, timeout_s: float) -> StreamChunk | None:
        try:
            return self._running[i].poll(timeout_s)
        except StopIteration:
            self._running.pop(i).close()
            self._start()
            return None

    def _start(self) -> None:
        while self._waiting:
            i, request = self._waiting[0]
            try:
                stream = self._engine.infer_stream(request)
            except QueueFull:
                # A call that fills the queue by itself could never succeed by being sent
                # again: its other requests wait here for a place.
                if not self._streams:
                    raise
                return
            except InvalidRequest as error:
                raise self._naming_prompt(error, i) from error
            self._waiting.popleft()
            self._streams[i] = self._running[i] = stream


def infer_all(
    engine: Engine, requests: Sequence[InferenceRequest], is_abandoned: Callable[[], bool]
) -> tuple[InferenceResponse, ...]:
    """Run the requests to their ends; answers in the requests' order.

    :raises Cancelled: when ``is_abandoned`` said so.
    """
    if len(requests) == 1:
        return (engine.infer(requests[0], is_abandoned=is_abandoned),)
    assemblers = [ResponseAssembler(request.sampling_params.n) for request in requests]
    with ParallelStreams(engine, requests) as streams:
        asked_s = time.monotonic()
        for got in streams.chunks():
            if got is not None:
                i, chunk = got
                assemblers[i].add(chunk)
            if time.monotonic() - asked_s >= TICK_S:
                asked_s = time.monotonic()
                if is_abandoned():
                    raise Cancelled("The client left.")
        return tuple(
            assembler.response(request.id, streams.stream(i))
            for i, (assembler, request) in enumerate(zip(assemblers, requests, strict=True))
        )


def total_usage(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(u.prompt_tokens for u in usages),
        completion_tokens=sum(u.completion_tokens for u in usages),
        cached_tokens=sum(u.cached_tokens for u in usages),
        reasoning_tokens=sum(u.reasoning_tokens for u in usages),
    )


def joint_timings(timings: Sequence[Timings]) -> Timings:
    """Of requests that ran side by side: tokens add up, their times overlap."""
    first_ms = [t.ttft_ms for t in timings if t.ttft_ms is not None]
    return Timings(
        queue_ms=max((t.queue_ms for t in timings), default=0.0),
        prompt_n=sum(t.prompt_n for t in timings),
        prompt_ms=max((t.prompt_ms for t in timings), default=0.0),
        predicted_n=sum(t.predicted_n for t in timings),
        predicted_ms=max((t.predicted_ms for t in timings), default=0.0),
        ttft_ms=min(first_ms, default=None),
    )
