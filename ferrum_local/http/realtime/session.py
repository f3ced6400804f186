"""One realtime session: a loop on the thread that serves its socket.

Everything that changes the session happens in this loop, one event after the other. Other threads
(transcripts, answers) only leave results for it.
"""

from __future__ import annotations

import base64
import functools
import logging
import queue
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec

from ferrum_local.audio_types import WHISPER_RATE_HZ
from ferrum_local.engine.contracts import Engine
from ferrum_local.errors import FerrumError
from ferrum_local.http.config import RealtimeLimits
from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.hosted_names import without_hosted_name
from ferrum_local.http.openai.validation import invalid, unsupported
from ferrum_local.http.realtime import events
from ferrum_local.http.realtime.answer import Asker, prompt_for
from ferrum_local.http.realtime.answer_events import AudioEncoder
from ferrum_local.http.realtime.answers import Answers
from ferrum_local.http.realtime.hearing import Turn
from ferrum_local.http.realtime.items import Content, Conversation, Item, item_from
from ferrum_local.http.realtime.kept_audio import kept_samples
from ferrum_local.http.realtime.listener import Listener
from ferrum_local.http.realtime.outlet import Outlet
from ferrum_local.http.realtime.plan import check_tools, make_plan
from ferrum_local.http.realtime.prefill import Prefill
from ferrum_local.http.realtime.settings import SessionSettings, TurnDetection, updated
from ferrum_local.http.realtime.websocket import Oversize, Waker, WebSocket

log = logging.getLogger(__name__)

GOING_AWAY, NORMAL = 1001, 1000
_LOOK_S = 1.0  # how often a session looks at the time, and whether the server is stopping
_LAST_WORDS_S = 15.0  # for the transcript of what was said before the client closed
_BUSY_OUTLET_BYTES = 512 * 1024  # unsent: answers wait until the client has read some


class Session:
    """:param client_id: who is asking. :param metadata: of requests to the engine."""

    def __init__(
        self,
        socket: WebSocket,
        waker: Waker,
        engine: Engine,
        settings: SessionSettings,
        limits: RealtimeLimits,
        *,
        client_id: str,
        metadata: dict[str, str],
    ) -> None:
        self._socket = socket
        self._waker = waker
        self._engine = engine
        self._settings = settings
        self._limits = limits
        self._client_id = client_id
        self._metadata = metadata
        self._id = f"sess_{secrets.token_hex(12)}"
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._outlet = Outlet(socket.send)
        self._conversation = Conversation()
        self._listener = Listener(
            engine, settings, conversation=self._conversation, outlet=self._outlet, hooks=self,
            post=self._post, is_abandoned=self._is_abandoned, session_id=self._id,
            max_s=limits.max_audio_s,
        )  # fmt: skip
        self._answers = Answers(
            self._conversation, f"conv_{secrets.token_hex(12)}", self._outlet, waker.wake
        )
        self._prefill = Prefill()
        self._answer_is_due = False
        self._event_s = self._looked_s = time.monotonic()  # of the client's last event

    def run(self) -> None:
        """Until the client leaves, or the session is closed."""
        self._outlet.event("session.created", session=self._settings.body(self._id))
        try:
            while not (self._socket.is_gone or self._socket.wants_close):
                self._socket.wait(_LOOK_S)
                self._work()
                if reason := self._reason_to_close():
                    self._socket.close(*reason)
            self._say_last_words()
        finally:
            self._answers.close()
            self._listener.close()
            self._prefill.close()

    # -- the loop ------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._socket.messages:
            self._on_message(self._socket.messages.popleft())
            self._run_posted()
        self._run_posted()
        self._answers.take(lambda: self._socket.n_unsent_bytes < _BUSY_OUTLET_BYTES)
        self._watch_silence()
        if self._answer_is_due and not (self._answers.active or self._listener.is_busy):
            self._answer_is_due = False
            self._guarded(lambda: self._create_response(None), None)

    def _post(self, do: Callable[[], None]) -> None:
        """Have ``do`` called in the loop; from any thread."""
        self._posted.put(do)
        self._waker.wake()

    def _run_posted(self) -> None:
        while not self._posted.empty():
            self._guarded(self._posted.get(), None)

    def _reason_to_close(self) -> tuple[int, str] | None:
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return None
        self._looked_s = now_s
        idle_s = now_s - self._event_s
        limit_s = self._limits.idle_timeout_s
        if self._answers.any_running or self._listener.is_busy:
            return None
        if limit_s is not None and idle_s > limit_s:
            return NORMAL, f"Nothing came from the client for {limit_s:g} s."
        if self._engine.status().state == "draining":
            return GOING_AWAY, "The server is shutting down."
        return None

    def _is_abandoned(self) -> bool:
        """For whoever keeps the loop waiting."""
        return self._socket.peer_left or self._engine.status().state == "draining"

    def _say_last_words(self) -> None:
        """The client asked to close: what it said is still written down and sent."""
        self._answers.close()
        if not self._socket.is_gone:
            self._guarded(self._listener.commit_rest, None)
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._listener.is_busy and not self._socket.is_gone and time.monotonic() < deadline:
            self._socket.wait(_LOOK_S)
            self._run_posted()
            self._answers.close()
        self._socket.close(NORMAL)

    def _watch_silence(self) -> None:
        """``idle_timeout_ms``: the model goes on if nobody answers it."""
        detection = self._settings.audio.input.turn_detection
        heard_s = self._answers.heard_until_s
        if detection is None or detection.idle_timeout_ms is None or heard_s is None:
            return
        if self._settings.type == "transcription":
            return
        if self._listener.is_speaking or self._listener.is_busy:
            return
        if time.monotonic() >= heard_s + detection.idle_timeout_ms / 1000:
            self._answers.ended_s = None  # once for each answer, even if it fails
            self._guarded(functools.partial(self._go_on, detection.idle_timeout_ms), None)

    def _go_on(self, idle_ms: int) -> None:
        self._listener.time_out(idle_ms)
        self._create_response(None)

    # -- what the listener tells -----------------------------------------------------------------

    def speech_started(self) -> None:
        detection = self._settings.audio.input.turn_detection
        if detection is not None and detection.interrupt_response:
            self._answers.interrupt()
        self.heard_so_far("")

    def heard_so_far(self, text: str) -> None:
        detection = self._settings.audio.input.turn_detection
        if self._settings.type == "transcription" or self._answers.active:
            return
        if detection is not None and not detection.create_response:
            return
        said = Item(type="message", id="", role="user", content=[Content("input_audio", text)])
        plan = make_plan(self._settings, None, self._conversation)
        self._prefill.offer(self._asker(), prompt_for(plan, (*self._conversation, said)))

    def turn_is_over(self, item: Item, turn_detection: TurnDetection | None) -> None:
        wants_answer = turn_detection is not None and turn_detection.create_response
        if wants_answer and item.text and self._settings.type == "realtime":
            self._answer_is_due = True
        if not self._listener.is_busy:
            self._answers.start_ready()

    # -- what the client sends --------------------------------------------------------------------

    def _on_message(self, message: str | bytes | Oversize) -> None:
        self._event_s = time.monotonic()
        if isinstance(message, Oversize):
            limit = self._limits.max_message_bytes
            error = f"The message is longer than {limit} bytes and was not read."
            self._outlet.error(ApiError(error, code="message_too_large"))
        elif isinstance(message, bytes):
            error = "Events are JSON in text messages; a binary one was not read."
            self._outlet.error(ApiError(error, code="invalid_message"))
        else:
            self._guarded(lambda: self._on_text(message), None)

    def _guarded(self, do: Callable[[], None], client_event_id: str | None) -> None:
        """Whatever goes wrong is told as an event, and the session goes on."""
        try:
            do()
        except (ApiError, FerrumError) as error:
            self._outlet.error(error, client_event_id)
        except Exception as error:
            log.exception("A realtime event failed")
            self._outlet.error(error, client_event_id)

    def _on_text(self, message: str) -> None:
        body = events.decode(message)
        self._guarded(lambda: self._on_event(events.parse(body)), events.client_event_id(body))

    def _on_event(self, event: events.ClientEvent) -> None:
        if isinstance(event, events.AudioAppend):
            self._listener.append(event.audio)
        elif isinstance(event, events.AudioCommit):
            self._listener.commit()
        elif isinstance(event, events.AudioClear):
            self._listener.clear()
        elif isinstance(event, events.SessionUpdate):
            self._update(event.session)
        elif isinstance(event, events.ItemCreate):
            self._create_item(event)
        elif isinstance(event, events.ItemRetrieve):
            self._outlet.event("conversation.item.retrieved", item=self._whole(event.item_id))
        elif isinstance(event, events.ItemDelete):
            self._conversation.delete(event.item_id)
            self._outlet.event("conversation.item.deleted", item_id=event.item_id)
        elif isinstance(event, events.ItemTruncate):
            item = self._conversation.get(event.item_id)
            self._answers.truncate(item, event.content_index, event.audio_end_ms)
        elif isinstance(event, events.ResponseCancel):
            self._answers.cancel(event.response_id)
        elif isinstance(event, events.ResponseCreate):
            self._create_response(event.response)

    def _update(self, update: dict[str, Any]) -> None:
        settings = updated(self._settings, update)
        if settings.type == "realtime":
            info = self._engine.resolve_model(without_hosted_name(settings.model, "realtime"))
            settings = msgspec.structs.replace(settings, model=info.id)
            check_tools(settings)
            if settings.speaks:
                self._engine.resolve_voice(settings.audio.output.voice_name)
        self._listener.configure(settings)
        self._settings = settings
        self._outlet.event("session.updated", session=settings.body(self._id))

    def _create_item(self, event: events.ItemCreate) -> None:
        item, to_hear = item_from(event.item, "item")
        if len(to_hear) > 1:
            raise unsupported("item.content", "more than one part of audio in an item")
        turns: list[tuple[Turn, int]] = []
        with ExitStack() as prepared:
            for i, audio in to_hear:
                turn = self._listener.prepare_item(item, audio, f"item.content[{i}].audio")
                prepared.callback(turn.transcription.close)
                turns.append((turn, i))
            previous_id = self._conversation.add(item, event.previous_item_id)
            prepared.pop_all()
        told = {"item": item.body(), "previous_item_id": previous_id}
        self._outlet.event("conversation.item.added", **told)
        for turn, i in turns:
            self._listener.hear_item(turn, i)
        if not turns:
            self._outlet.event("conversation.item.done", **told)

    def _whole(self, item_id: str) -> dict[str, Any]:
        """An item with the audio that a user said in it, in the session's format."""
        item = self._conversation.get(item_id)
        body = item.body()
        for part, content in zip(body.get("content", ()), item.content, strict=False):
            if content.audio:
                encoder = AudioEncoder(self._settings.audio.input.format, WHISPER_RATE_HZ)
                data = encoder.add(kept_samples(content)) + encoder.finish()
                part["audio"] = base64.b64encode(data).decode()
        return body

    def _create_response(self, fields: events.ResponseFields | None) -> None:
        if self._settings.type == "transcription":
            raise invalid("type", "a transcription session makes no responses")
        plan = make_plan(self._settings, fields, self._conversation)
        self._answers.create(plan, self._asker())
        if not self._listener.is_busy:
            self._answers.start_ready()

    def _asker(self) -> Asker:
        return Asker(
            engine=self._engine,
            model_id=self._settings.model or "",
            client_id=self._client_id,
            session_id=self._id,
            metadata=self._metadata,
        )
