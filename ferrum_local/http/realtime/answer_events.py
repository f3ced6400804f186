"""The events of one response, in OpenAI's order, with the items that they build up."""

from __future__ import annotations

import base64
import secrets
from typing import Any, Literal

import numpy as np

from ferrum_local.audio import g711, wav
from ferrum_local.audio.decode import Samples
from ferrum_local.audio.resample import resampling
from ferrum_local.engine.spoken_answer import AnswerAudio
from ferrum_local.http.realtime.items import Content, Conversation, Item, new_item_id
from ferrum_local.http.realtime.outlet import Outlet
from ferrum_local.http.realtime.plan import ResponsePlan
from ferrum_local.http.realtime.playback import SpokenItem
from ferrum_local.http.realtime.settings import AudioFormat
from ferrum_local.types import ToolCallDelta, Usage

Status = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
DELTA_S = 0.25  # of audio in one event, so that a client can begin to play


class AnswerEvents:
    """:param conversation: where items go; None: nowhere (``conversation: "none"``)."""

    def __init__(
        self,
        response_id: str,
        plan: ResponsePlan,
        outlet: Outlet,
        conversation: Conversation | None,
        conversation_id: str,
    ) -> None:
        self.id = response_id
        self._plan = plan
        self._outlet = outlet
        self._conversation = conversation
        self._conversation_id = conversation_id if conversation is not None else None
        self._output: list[Item] = []
        self._message: Item | None = None
        self._calls: dict[int, Item] = {}
        self._encoder: AudioEncoder | None = None
        self._outlet.event("response.created", response=self._body("in_progress", None, None))

    @property
    def message(self) -> Item | None:
        return self._message

    # -- parts as they come --------------------------------------------------------------------

    def text(self, text: str) -> None:
        item = self._message or self._begin_message()
        content = item.content[0]
        content.text = (content.text or "") + text
        kind = "output_audio_transcript" if self._plan.speaks else "output_text"
        self._part_event(f"response.{kind}.delta", item, delta=text)

    def audio(self, part: AnswerAudio, now_s: float) -> None:
        item = self._message or self._begin_message()
        if self._encoder is None:
            self._encoder = AudioEncoder(self._plan.format, part.sample_rate_hz)
        assert item.spoken is not None
        n_ms = 1000 * len(part.samples) / part.sample_rate_hz
        item.spoken.add(part.text, n_ms, now_s)
        self._send_audio(item, self._encoder.add(part.samples))

    def tool_call(self, delta: ToolCallDelta) -> None:
        item = self._calls.get(delta.index)
        if item is None:
            item = self._calls[delta.index] = Item(
                type="function_call",
                id=new_item_id(),
                status="in_progress",
                call_id=delta.id or f"call_{secrets.token_hex(8)}",
                name=delta.name or "",
            )
            self._begin(item)
        if delta.arguments:
            item.arguments += delta.arguments
            self._item_event(
                "response.function_call_arguments.delta", item,
                call_id=item.call_id, delta=delta.arguments,
            )  # fmt: skip

    def finish(self, status: Status, details: dict[str, Any] | None, usage: Usage) -> None:
        """Close what is open, then the response."""
        item_status: Literal["completed", "incomplete"] = (
            "completed" if status == "completed" else "incomplete"
        )
        for item in self._output:
            item.status = item_status
            if item.type == "message":
                self._finish_message(item, is_cut=status == "cancelled")
            else:
                self._item_event(
                    "response.function_call_arguments.done", item,
                    call_id=item.call_id, name=item.name, arguments=item.arguments,
                )  # fmt: skip
            self._outlet.event(
                "response.output_item.done",
                response_id=self.id,
                output_index=self._output.index(item),
                item=item.body(),
            )
            if self._conversation is not None and item in self._conversation:
                self._outlet.event(
                    "conversation.item.done",
                    item=item.body(),
                    previous_item_id=self._conversation.before(item),
                )
        self._outlet.event("response.done", response=self._body(status, details, usage))

    def close(self) -> None:
        """Give back what it holds, without another event."""
        if self._encoder is not None:
            self._encoder.finish()

    # -- items ---------------------------------------------------------------------------------

    def _begin(self, item: Item) -> None:
        self._output.append(item)
        self._outlet.event(
            "response.output_item.added",
            response_id=self.id,
            output_index=len(self._output) - 1,
            item=item.body(),
        )
        if self._conversation is not None:
            previous_id = self._conversation.add(item)
            self._outlet.event(
                "conversation.item.added", item=item.body(), previous_item_id=previous_id
            )

    def _begin_message(self) -> Item:
        item = Item(type="message", id=new_item_id(), status="in_progress", role="assistant")
        self._message = item
        if self._plan.speaks:
            item.spoken = SpokenItem()
        self._begin(item)
        item.content.append(Content("output_audio" if self._plan.speaks else "output_text"))
        self._part_event("response.content_part.added", item, part=self._part(item))
        return item

    def _finish_message(self, item: Item, *, is_cut: bool) -> None:
        text = item.content[0].text
        if self._plan.speaks:
            if self._encoder is not None:
                rest = self._encoder.finish()
                self._send_audio(item, b"" if is_cut else rest)
            self._part_event("response.output_audio.done", item)
            self._part_event("response.output_audio_transcript.done", item, transcript=text)
        else:
            self._part_event("response.output_text.done", item, text=text)
        self._part_event("response.content_part.done", item, part=self._part(item))

    def _part(self, item: Item) -> dict[str, Any]:
        text = item.content[0].text
        if self._plan.speaks:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _send_audio(self, item: Item, data: bytes) -> None:
        n_piece = self._plan.format.sample_bytes * int(self._plan.format.rate_hz * DELTA_S)
        for start in range(0, len(data), n_piece):
            delta = base64.b64encode(data[start : start + n_piece]).decode()
            self._part_event("response.output_audio.delta", item, delta=delta)

    # -- shapes --------------------------------------------------------------------------------

    def _item_event(self, type_: str, item: Item, **fields: Any) -> None:
        self._outlet.event(
            type_,
            response_id=self.id,
            item_id=item.id,
            output_index=self._output.index(item),
            **fields,
        )

    def _part_event(self, type_: str, item: Item, **fields: Any) -> None:
        self._item_event(type_, item, content_index=0, **fields)

    def _body(
        self, status: Status, details: dict[str, Any] | None, usage: Usage | None
    ) -> dict[str, Any]:
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.body() for item in self._output],
            "conversation_id": self._conversation_id,
            **self._plan.body(),
            "usage": usage_body(usage) if usage else None,
        }


class AudioEncoder:
    """Samples at a voice's rate → bytes in a session's format."""

    def __init__(self, format_: AudioFormat, source_rate_hz: int) -> None:
        self._law = format_.law
        self._resample = resampling(source_rate_hz, format_.rate_hz)

    def add(self, samples: Samples) -> bytes:
        return self._encoded(self._resample(samples))

    def finish(self) -> bytes:
        return self._encoded(self._resample(None))

    def _encoded(self, samples: Samples) -> bytes:
        if self._law is not None:
            return g711.encode(samples, self._law)
        return wav.to_s16(np.asarray(samples))


def usage_body(usage: Usage) -> dict[str, Any]:
    """All tokens are text: what is heard and spoken is written down for the model."""
    text = {"audio_tokens": 0, "image_tokens": 0}
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            **text,
            "text_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "cached_tokens_details": {**text, "text_tokens": usage.cached_tokens},
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }
