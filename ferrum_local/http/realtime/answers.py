"""The speaking half of a session: its responses, how they end, and how they are interrupted."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrum_local.engine.spoken_answer import AnswerAudio, AnswerText
from ferrum_local.errors import GenerationFailed
from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.validation import invalid, shown
from ferrum_local.http.realtime.answer import Answer, Asker, CancelReason, Finished, Part
from ferrum_local.http.realtime.answer_events import AnswerEvents
from ferrum_local.http.realtime.items import Conversation, Item
from ferrum_local.http.realtime.outlet import Outlet, error_fields
from ferrum_local.http.realtime.plan import ResponsePlan
from ferrum_local.types import FinishReason, ToolCallDelta, Usage

MAX_OUT_OF_BAND = 4  # responses beside the conversation's own


@dataclass(eq=False)
class _Running:
    answer: Answer
    events: AnswerEvents
    started: bool = False


class Answers:
    """:param wake: has the session's thread look for parts; called from any thread."""

    def __init__(
        self,
        conversation: Conversation,
        conversation_id: str,
        outlet: Outlet,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conversation = conversation
        self._conversation_id = conversation_id
        self._outlet = outlet
        self._wake = wake
        self._clock = clock
        self._running: list[_Running] = []
        self._last_spoken: Item | None = None
        self.ended_s: float | None = None  # when the last of the conversation's ended

    @property
    def active(self) -> bool:
        """Whether a response of the conversation's own is being made."""
        return self._active() is not None

    @property
    def any_running(self) -> bool:
        return bool(self._running)

    @property
    def heard_until_s(self) -> float | None:
        """When the listener will have heard the last response; None: there was none, or one is
        being made."""
        if self.ended_s is None or self.active:
            return None
        spoken = self._last_spoken.spoken if self._last_spoken else None
        return max(self.ended_s, spoken.ends_s if spoken else 0.0)

    def create(self, plan: ResponsePlan, asker: Asker) -> None:
        """Announce a response. It begins with ``start_ready``.

        :raises ApiError: one is being made already.
        """
        response_id = f"resp_{secrets.token_hex(12)}"
        active = self._active()
        if plan.in_conversation and active is not None:
            raise ApiError(
                "Conversation already has an active response in progress: "
                f"{active.answer.id}. Wait until it is done, or cancel it.",
                code="conversation_already_has_active_response",
            )
        n_out_of_band = sum(not r.answer.plan.in_conversation for r in self._running)
        if not plan.in_conversation and n_out_of_band >= MAX_OUT_OF_BAND:
            raise ApiError(
                f"There are {MAX_OUT_OF_BAND} responses beside the conversation already.",
                code="too_many_responses",
            )
        events = AnswerEvents(
            response_id, plan, self._outlet,
            self._conversation if plan.in_conversation else None, self._conversation_id,
        )  # fmt: skip
        self._running.append(_Running(Answer(response_id, plan, asker, self._wake), events))

    def start_ready(self) -> None:
        """Begin what was announced: all that it answers is written down now."""
        for running in self._running:
            if not running.started:
                running.started = True
                items: Sequence[Item] | None = running.answer.plan.items
                running.answer.start(tuple(self._conversation) if items is None else items)

    def take(self, is_room: Callable[[], bool]) -> None:
        """Send what was made, as long as there ``is_room``."""
        for running in tuple(self._running):
            while running in self._running and is_room():
                part = running.answer.take()
                if part is None:
                    break
                self._on_part(running, part)

    def cancel(self, response_id: str | None) -> None:
        """:raises ApiError: there is nothing to cancel."""
        if response_id is None:
            wanted = self._active()
        else:
            wanted = next((r for r in self._running if r.answer.id == response_id), None)
        if wanted is None:
            which = shown(response_id) if response_id else "the conversation's"
            raise ApiError(
                f"Cancellation failed: no active response found ({which}).",
                code="response_cancel_not_active",
            )
        self._cancel(wanted, "client_cancelled")

    def interrupt(self) -> None:
        """The user speaks: end the response, and remember only what was heard of it."""
        now_s = self._clock()
        active = self._active()
        item = self._last_spoken
        if active is not None:
            self._cancel(active, "turn_detected")
            item = active.events.message or item
        self._last_spoken = None
        if item is None or item.spoken is None or item not in self._conversation:
            return
        if item.spoken.is_playing(now_s) or item.spoken.duration_ms == 0:
            self._truncate(item, item.spoken.heard_ms(now_s))

    def truncate(self, item: Item, content_index: int, audio_end_ms: int) -> None:
        """As the client says: it knows what it played.

        :raises ApiError: there is no such audio.
        """
        if item.spoken is None or content_index != 0:
            raise invalid("item_id", "only audio that the assistant spoke can be truncated")
        if audio_end_ms > item.spoken.duration_ms:
            raise invalid(
                "audio_end_ms",
                f"audio content of {item.spoken.duration_ms} ms is already shorter than "
                f"{audio_end_ms} ms",
            )
        self._truncate(item, audio_end_ms)

    def close(self) -> None:
        """Give up all of them, without another event."""
        for running in self._running:
            running.answer.cancel()
            running.events.close()
        self._running.clear()

    # -- one response ----------------------------------------------------------------------------

    def _active(self) -> _Running | None:
        return next((r for r in self._running if r.answer.plan.in_conversation), None)

    def _on_part(self, running: _Running, part: Part) -> None:
        events = running.events
        if isinstance(part, AnswerText):
            events.text(part.text)
        elif isinstance(part, AnswerAudio):
            events.audio(part, self._clock())
            if running.answer.plan.in_conversation:
                self._last_spoken = events.message
        elif isinstance(part, ToolCallDelta):
            events.tool_call(part)
        else:
            self._finish(running, part)

    def _finish(self, running: _Running, finished: Finished) -> None:
        usage = finished.usage or running.answer.usage
        failure = finished.failure
        if failure is None and finished.reason is FinishReason.CANCELLED:
            failure = GenerationFailed("The response was cancelled by the server.")
        if failure is not None:
            self._end(running)
            fields = error_fields(failure)
            del fields["param"]
            running.events.finish("failed", {"type": "failed", "error": fields}, usage)
        elif finished.reason is FinishReason.LENGTH:
            self._end(running)
            details = {"type": "incomplete", "reason": "max_output_tokens"}
            running.events.finish("incomplete", details, usage)
        else:
            self._end(running)
            running.events.finish("completed", None, usage)

    def _cancel(self, running: _Running, reason: CancelReason) -> None:
        running.answer.cancel()
        self._end(running)
        details: dict[str, Any] = {"type": "cancelled", "reason": reason}
        usage: Usage = running.answer.usage
        running.events.finish("cancelled", details, usage)

    def _end(self, running: _Running) -> None:
        self._running.remove(running)
        if running.answer.plan.in_conversation:
            self.ended_s = self._clock()

    def _truncate(self, item: Item, audio_end_ms: int) -> None:
        assert item.spoken is not None
        item.heard = item.spoken.text_until(audio_end_ms)
        self._outlet.event(
            "conversation.item.truncated",
            item_id=item.id,
            content_index=0,
            audio_end_ms=audio_end_ms,
        )
