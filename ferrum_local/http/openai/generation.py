"""Runs a call on the engine and sends the answer, whole or as a stream, for both routes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import msgspec
from flask import Response, request

from ferrum_local.engine.loading import wait_for_model, waits_for_model
from ferrum_local.errors import Cancelled, GenerationFailed
from ferrum_local.http.bodies import json_response
from ferrum_local.http.disconnect import client_gone
from ferrum_local.http.openai.call import Call
from ferrum_local.http.openai.chunks import ChunkWriter
from ferrum_local.http.openai.parallel import (
    TICK_S,
    ParallelStreams,
    infer_all,
    joint_timings,
    total_usage,
)
from ferrum_local.http.openai.responses import fill_record, timings_body, usage_body
from ferrum_local.http.request_context import current_record
from ferrum_local.http.sse import DONE, KEEP_ALIVE, event, stream_response
from ferrum_local.http.state import state
from ferrum_local.types import FinishReason, InferenceRequest, InferenceResponse, Timings, Usage

BodyWriter = Callable[[Sequence[InferenceResponse], Usage, Timings], msgspec.Struct]


def answer(
    call: Call,
    requests: Sequence[InferenceRequest],
    *,
    body: BodyWriter,
    chunks: Callable[[], ChunkWriter],
) -> Response:
    """Generate and reply. Whatever the engine refuses is raised before the first byte.

    :param body: shapes the reply of a call that does not stream.
    :param chunks: makes the writer of one that does.
    """
    app = state()
    record = current_record()
    record.model = call.envelope.model
    is_gone = client_gone(request.environ)
    with ExitStack() as held:
        held.enter_context(app.gate.admit())

        def cancel_all() -> None:
            for engine_request in requests:
                app.engine.cancel(engine_request.id)

        held.enter_context(app.departures.watch(request.environ, cancel_all))
        lease = app.engine.lease_model(call.envelope.model, keep_alive_s=call.keep_alive_s)
        held.enter_context(lease)
        if not call.stream:
            wait_for_model(lease, deadline_s=call.deadline_s, is_abandoned=is_gone)
            responses = infer_all(app.engine, requests, is_gone)
            usage = total_usage([r.usage for r in responses])
            timings = joint_timings([r.timings for r in responses])
            fill_record(record, usage, timings)
            return json_response(body(responses, usage, timings))

        def note_gone() -> None:
            record.client_left = True

        def start(reply: ExitStack) -> Iterator[bytes]:
            """:param reply: holds the streams until the reply ends."""
            streams = reply.enter_context(ParallelStreams(app.engine, requests))
            # Leaving early, too, is told with the counts that were reached.
            reply.callback(lambda: fill_record(record, streams.usage, streams.timings))
            return stream_events(
                call,
                streams,
                chunks(),
                keep_alive_s=app.config.keep_alive_s,
                is_gone=is_gone,
                on_gone=note_gone,
            )

        def start_once_loaded(reply: ExitStack) -> Iterator[bytes]:
            waits = waits_for_model(lease, deadline_s=call.deadline_s, is_abandoned=is_gone)
            try:
                yield from keep_alives(waits, app.config.keep_alive_s)
            except Cancelled:
                note_gone()
                return
            yield from start(reply)

        # What is refused within a moment is refused with a status; after that the client is
        # told that something is coming.
        is_ready = lease.wait(app.config.keep_alive_s)
        events = start(held) if is_ready else None
        # From here on the reply holds what this block held, until it is closed.
        reply = held.pop_all()
        return stream_response(events or start_once_loaded(reply), on_close=reply.close)


def keep_alives(waits: Iterator[None], interval_s: float) -> Iterator[bytes]:
    """A comment every ``interval_s`` seconds, the first one at once, for as long as there are
    ``waits``."""
    wrote_s = -math.inf
    for _ in waits:
        now_s = time.monotonic()
        if now_s - wrote_s >= interval_s:
            wrote_s = now_s
            yield KEEP_ALIVE


def stream_events(
    call: Call,
    streams: ParallelStreams,
    writer: ChunkWriter,
    *,
    keep_alive_s: float,
    is_gone: Callable[[], bool],
    on_gone: Callable[[], None],
) -> Iterator[bytes]:
    """The events of a stream in order, with a comment whenever there was none for a while.

    :param on_gone: called when the client left; the events end then.
    :raises FerrumError: when generation failed; nothing may follow the error's event.
    """
    for opening in writer.opening():
        yield event(opening)
    wrote_s = asked_s = time.monotonic()
    n_open = streams.n_choices
    end = None
    chunks = streams.chunks()
    while True:
        try:
            got = next(chunks)
        except StopIteration:
            break
        except Cancelled:
            if not is_gone():
                raise
            on_gone()
            return
        now_s = time.monotonic()
        if now_s - asked_s >= TICK_S:
            asked_s = now_s
            if is_gone():
                on_gone()
                return
        if got is None:
            if now_s - wrote_s >= keep_alive_s:
                wrote_s = now_s
                yield KEEP_ALIVE
            continue
        i, chunk = got
        for content in writer.content(i, chunk, streams.stream(i)):
            wrote_s = now_s
            yield event(content)
        if chunk.finish_reason is not None:
            n_open -= 1
            end = (i, chunk.index, chunk.finish_reason)
            if n_open:
                yield event(writer.finish(*end))
    if n_open or end is None:
        raise GenerationFailed("The engine's stream ended before every choice had.")
    yield from closing_events(call, writer, end, streams.usage, streams.timings)


def closing_events(
    call: Call,
    writer: ChunkWriter,
    end: tuple[int, int, FinishReason],
    usage: Usage,
    timings: Timings,
    *,
    spoken: bool = False,
) -> Iterator[bytes]:
    """The last choice's finish, held back until counts and times are final, and what follows.

    :param end: arguments of ``writer.finish``.
    """
    times = timings_body(timings, usage)
    if call.include_usage:
        yield event(writer.finish(*end))
        yield event(writer.usage(usage_body(usage, spoken=spoken), times))
    else:
        yield event(writer.finish(*end, timings=times))
    yield DONE
