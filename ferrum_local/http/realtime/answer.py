"""One response being made: the model writes, and the voice speaks, on threads of their own."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from ferrum_local.engine.contracts import Engine, InferenceStream
from ferrum_local.engine.spoken_answer import AnswerAudio, AnswerText, SpokenAnswer
from ferrum_local.errors import Cancelled, ContextOverflow
from ferrum_local.http.realtime.items import Item, chat_messages
from ferrum_local.http.realtime.plan import ResponsePlan
from ferrum_local.types import (
    ChatPrompt,
    FinishReason,
    InferenceRequest,
    Priority,
    ReasoningOptions,
    SamplingParams,
    ToolCallDelta,
    Usage,
)

log = logging.getLogger(__name__)

MAX_WAITING = 64  # parts that the session did not take yet
_LOOK_S = 0.1
CancelReason: TypeAlias = Literal["client_cancelled", "turn_detected"]


class Finished(msgspec.Struct, frozen=True):
    """The last part. ``reason`` is set unless there was a ``failure``."""

    usage: Usage | None = None
    reason: FinishReason | None = None
    failure: Exception | None = None


Part: TypeAlias = AnswerText | AnswerAudio | ToolCallDelta | Finished


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks the engine, for whom: the same for all requests of a session."""

    engine: Engine
    model_id: str
    client_id: str
    session_id: str
    metadata: dict[str, str]

    def request(
        self, request_id: str, prompt: ChatPrompt, sampling: SamplingParams
    ) -> InferenceRequest:
        return InferenceRequest(
            id=request_id,
            model_id=self.model_id,
            prompt=prompt,
            sampling_params=sampling,
            stream=True,
            priority=Priority.REALTIME,
            client_id=self.client_id,
            session_id=self.session_id,
            created_at=time.time(),
            metadata=self.metadata,
        )


def prompt_for(plan: ResponsePlan, items: Sequence[Item]) -> ChatPrompt:
    return ChatPrompt(
        messages=tuple(chat_messages(plan.instructions, items)),
        tools=plan.tools.tools,
        tool_choice=plan.tools.tool_choice,
        tool_name=plan.tools.tool_name,
        parallel_tool_calls=plan.tools.parallel,
        reasoning=ReasoningOptions(effort=plan.effort),
    )


class Answer:
    """Runs one response; its parts are taken by the session's thread.

    :param wake: called when there is something to take; from any thread.
    """

    def __init__(
        self, response_id: str, plan: ResponsePlan, asker: Asker, wake: Callable[[], None]
    ) -> None:
        self.id = response_id
        self.plan = plan
        self._asker = asker
        self._wake = wake
        self._parts: queue.Queue[Part] = queue.Queue(MAX_WAITING)
        self._cancelled = threading.Event()
        self._stops: list[Callable[[], None]] = []
        self._stream: InferenceStream | None = None

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        stream = self._stream
        return stream.usage if stream else Usage(prompt_tokens=0, completion_tokens=0)

    def start(self, items: Sequence[Item]) -> None:
        """:param items: what the model is shown; as they are now."""
        prompt = prompt_for(self.plan, items)
        threading.Thread(
            target=self._work, args=(prompt,), name="realtime-answer", daemon=True
        ).start()

    def take(self) -> Part | None:
        """The next part, if there is one."""
        try:
            return self._parts.get_nowait()
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Stop to write and to speak; from any thread, also twice. No more parts are of use."""
        self._cancelled.set()
        for stop in tuple(self._stops):
            stop()

    # -- on the answer's thread ------------------------------------------------------------------

    def _work(self, prompt: ChatPrompt) -> None:
        try:
            finished = self._run(prompt)
        except Cancelled as error:
            finished = Finished(failure=error)
        except Exception as error:  # the session tells its client
            if not self._cancelled.is_set():
                log.debug("A realtime response failed", exc_info=error)
            finished = Finished(failure=error)
        self._put(finished)

    def _run(self, prompt: ChatPrompt) -> Finished:
        reason: list[FinishReason] = []

        def pieces() -> Iterator[str | ToolCallDelta]:
            for chunk in stream:
                if chunk.text:
                    yield chunk.text
                yield from chunk.tool_calls
                if chunk.finish_reason is not None:
                    reason.append(chunk.finish_reason)

        with contextlib.ExitStack() as held:
            speaking = self._start_speaking()
            if speaking is not None:
                held.enter_context(speaking)
            stream = held.enter_context(self._start_writing(prompt))
            if speaking is None:
                for piece in pieces():
                    self._put(AnswerText(piece) if isinstance(piece, str) else piece)
            else:
                for part in speaking.parts(pieces(), stop_text=stream.close):
                    self._put(part)
            return Finished(usage=stream.usage, reason=reason[-1] if reason else None)

    def _start_speaking(self) -> SpokenAnswer | None:
        """First, so that no such voice is told before a word was written."""
        if not self.plan.speaks:
            return None
        speaking = SpokenAnswer(
            self._asker.engine,
            voice=self.plan.voice,
            speed=self.plan.speed,
            priority=Priority.REALTIME,
            metadata=self._asker.metadata,
        )
        self._stop_with(speaking.close)
        return speaking

    def _start_writing(self, prompt: ChatPrompt) -> InferenceStream:
        sampling = SamplingParams(
            max_tokens=self.plan.max_tokens, temperature=self.plan.temperature
        )
        while True:
            try:
                stream = self._asker.engine.infer_stream(
                    self._asker.request(self.id, prompt, sampling)
                )
            except ContextOverflow as overflow:
                shorter = self._shortened(prompt, overflow)
                if shorter is None:
                    raise
                prompt = shorter
                continue
            self._stream = stream
            self._stop_with(stream.close)
            return stream

    def _shortened(self, prompt: ChatPrompt, overflow: ContextOverflow) -> ChatPrompt | None:
        """Without the oldest messages; None: not wanted, or nothing can go."""
        ratio = self.plan.retention_ratio
        if ratio is None:
            return None
        engine, model_id = self._asker.engine, self._asker.model_id
        messages = list(prompt.messages)
        shorter: ChatPrompt | None = None
        while True:
            n_dropped = _drop_oldest_turn(messages)
            if not n_dropped:
                return shorter
            shorter = msgspec.structs.replace(prompt, messages=tuple(messages))
            if engine.count_tokens(shorter, model_id) <= ratio * overflow.n_ctx:
                return shorter

    def _stop_with(self, stop: Callable[[], None]) -> None:
        """Have ``cancel`` call it, or call it now if it was cancelled already."""
        self._stops.append(stop)
        if self._cancelled.is_set():
            stop()

    def _put(self, part: Part) -> None:
        while not self._cancelled.is_set():
            try:
                self._parts.put(part, timeout=_LOOK_S)
            except queue.Full:
                continue
            self._wake()
            return


def _drop_oldest_turn(messages: list[dict[str, Any]]) -> int:
    """Take out what follows the system message up to the next user message but the last.

    :returns: how many messages that were.
    """
    first = 1 if messages and messages[0]["role"] == "system" else 0
    users = [i for i, m in enumerate(messages) if m["role"] == "user" and i > first]
    if not users:
        return 0
    n_dropped = users[0] - first
    del messages[first : users[0]]
    return n_dropped
