"""The listening half of a session: from audio that comes in to items with their words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import WHISPER_RATE_HZ, LiveTranscriptRequest
from ferrum_local.engine.contracts import Engine, LiveTranscription, SpeechDetector
from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.hosted_names import without_hosted_name
from ferrum_local.http.realtime.hearing import SETTLED_SAMPLES, Ears, Turn
from ferrum_local.http.realtime.input_audio import SAMPLES_PER_MS, AudioDecoder, InputBuffer
from ferrum_local.http.realtime.items import Content, Conversation, Item, new_item_id
from ferrum_local.http.realtime.kept_audio import KeptAudio
from ferrum_local.http.realtime.outlet import Outlet, error_fields
from ferrum_local.http.realtime.settings import SessionSettings, TurnDetection
from ferrum_local.http.realtime.turns import (
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    TurnDetector,
    TurnEvent,
    TurnSettings,
)
from ferrum_local.languages import wanted_language

log = logging.getLogger(__name__)

MIN_COMMIT_MS = 100  # OpenAI's
_LIVE_STEP_SAMPLES = 800 * SAMPLES_PER_MS  # of new speech, before it is worth another look
_KEPT_SAMPLES = 1_000 * SAMPLES_PER_MS  # before speech, beside the padding
_BLOCK_SAMPLES = 100 * SAMPLES_PER_MS  # looked at at once, so that events come in their order


class ListenerHooks(Protocol):
    """What the session does when something was heard. All on its thread."""

    def speech_started(self) -> None: ...

    def heard_so_far(self, text: str) -> None: ...

    def turn_is_over(self, item: Item, turn_detection: TurnDetection | None) -> None:
        """``item`` has its words; with turn detection, an answer may be due."""
        ...


class Listener:
    """:param post: has a function called on the session's thread.
    :param is_abandoned: whether to wait no longer for a model that is being loaded.
    :param session_id: for what it asks of the engine.
    :param max_s: of audio in the buffer, and of all that items keep."""

    def __init__(
        self,
        engine: Engine,
        settings: SessionSettings,
        *,
        conversation: Conversation,
        outlet: Outlet,
        hooks: ListenerHooks,
        post: Callable[[Callable[[], None]], None],
        is_abandoned: Callable[[], bool],
        session_id: str,
        max_s: float,
    ) -> None:
        self._engine = engine
        self._is_abandoned = is_abandoned
        self._settings = settings
        self._conversation = conversation
        self._outlet = outlet
        self._hooks = hooks
        self._session_id = session_id
        self._ears = Ears(post)
        self._buffer = InputBuffer(max_s)
        self._decoder = AudioDecoder(settings.audio.input.format)
        self._detector: SpeechDetector | None = None  # loaded when audio comes
        self._turns = TurnDetector(_turn_settings(settings))
        self._turn: Turn | None = None
        self._pending: list[Turn] = []  # committed, and not written down yet
        self._kept = KeptAudio(max_s)
        self._can_hear = False  # a model was found

    @property
    def is_busy(self) -> bool:
        """Whether words of committed turns are still to come."""
        return bool(self._pending)

    @property
    def is_speaking(self) -> bool:
        return self._turns.is_speaking

    @property
    def now_ms(self) -> int:
        return self._buffer.end // SAMPLES_PER_MS

    def configure(self, settings: SessionSettings) -> None:
        """:raises FerrumError: nothing can be heard with these; the old ones stay."""
        before = self._settings
        wanted = settings.audio.input.transcription
        if wanted != before.audio.input.transcription:
            self._can_hear = False
            if wanted is not None:
                self._new_transcription(settings).close()
        self._settings = settings
        if settings.audio.input.format != before.audio.input.format:
            self._decoder.close()
            self._decoder = AudioDecoder(settings.audio.input.format)
        self._turns.settings = _turn_settings(settings)

    def append(self, encoded: str) -> None:
        """:raises FerrumError: there is no model that hears, or the audio is not valid: nothing of
        it was taken. ApiError: the buffer is full; what had room was taken."""
        if not self._can_hear:
            self._new_transcription(self._settings).close()
            self._can_hear = True
        samples = self._decoder.add(encoded, "audio")
        for start in range(0, max(len(samples), 1), _BLOCK_SAMPLES):
            self._listen(samples[start : start + _BLOCK_SAMPLES])

    def commit(self) -> None:
        """:raises ApiError: there is too little to commit."""
        n_ms = len(self._buffer) / SAMPLES_PER_MS
        if self._detects is not None and (self._turn is None or not self._turn.voiced_end):
            n_ms = 0.0  # what was said is committed; silence alone is no turn
        if n_ms < MIN_COMMIT_MS:
            raise ApiError(
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{MIN_COMMIT_MS} ms of audio, but it has {n_ms:.2f} ms.",
                code="input_audio_buffer_commit_empty",
            )
        turn = self._turn or self._new_turn(self._buffer.start)
        if self._turns.is_speaking:
            turn.voiced_end = max(turn.voiced_end, self._voiced_end)
        self._turns.reset()
        self._commit(turn, self._buffer.end, None)

    def commit_rest(self) -> None:
        """What was being said when the client left."""
        if self._turns.is_speaking or (self._turn is not None and self._turn.voiced_end):
            self.commit()

    def clear(self) -> None:
        self._buffer.drop_until(self._buffer.end)
        self._turns.reset()
        if self._turn is not None:
            self._turn.transcription.close()
            self._turn = None
        self._outlet.event("input_audio_buffer.cleared")

    def prepare_item(self, item: Item, encoded: str, path: str) -> Turn:
        """Get ready to write down the audio of an item that is to be in the conversation.

        Then call ``hear_item``, or close the turn's transcription.

        :raises FerrumError: it cannot be heard. ApiError: naming ``path``.
        """
        decoder = AudioDecoder(self._settings.audio.input.format)
        samples = decoder.add(encoded, path)
        decoder.close()
        probabilities = self._engine.speech_detector().add(samples)
        threshold = _turn_settings(self._settings).threshold
        turn = Turn(item.id, 0, self._new_transcription(self._settings))
        turn.item, turn.samples = item, samples
        if any(p >= threshold for p in probabilities):
            turn.voiced_end = len(samples)
        return turn

    def hear_item(self, turn: Turn, index: int) -> None:
        assert turn.item is not None and turn.samples is not None
        self._kept.keep(turn.item.content[index], turn.samples)
        self._finish(turn, index, None)

    def time_out(self, idle_ms: int) -> None:
        """Nobody spoke for ``idle_ms``: an empty turn, for the model to go on."""
        end = self._buffer.end
        turn = self._new_turn(max(0, end - idle_ms * SAMPLES_PER_MS))
        self._outlet.event(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=turn.start // SAMPLES_PER_MS,
            audio_end_ms=end // SAMPLES_PER_MS,
            item_id=turn.item_id,
        )
        self._commit(turn, end, None)

    def close(self) -> None:
        for turn in (*self._pending, self._turn):
            if turn is not None:
                turn.transcription.close()
        self._ears.close()
        self._decoder.close()

    # -- from samples to turns ---------------------------------------------------------------

    @property
    def _detects(self) -> TurnDetection | None:
        return self._settings.audio.input.turn_detection

    @property
    def _voiced_end(self) -> int:
        return self._turns.voiced_end_ms * SAMPLES_PER_MS

    def _listen(self, samples: Samples) -> None:
        if self._detects is not None and not self._buffer.has_room(len(samples)):
            if self._turns.is_speaking:
                self._cut_turn()
            else:
                self._buffer.make_room(len(samples))
        self._buffer.add(samples)
        if self._detector is None:
            self._detector = self._engine.speech_detector()
        for probability in self._detector.add(samples):
            for event in self._turns.add(probability):
                self._on_turn_event(event)
        turn = self._turn
        if turn is not None and self._turns.is_speaking:
            turn.voiced_end = max(turn.voiced_end, self._voiced_end)
            since = max(turn.heard_until, turn.start)
            if self._buffer.end - since >= _LIVE_STEP_SAMPLES:
                self._look(turn, urgent=False)
        if self._detects is not None and not self._turns.is_speaking:
            padding = self._turns.settings.prefix_padding_ms * SAMPLES_PER_MS
            self._buffer.drop_until(self._buffer.end - padding - _KEPT_SAMPLES)

    def _cut_turn(self) -> None:
        """End a turn that fills the buffer, as if the speaker had stopped; the next one follows."""
        self._on_turn_event(SpeechStopped(self.now_ms, self._turns.voiced_end_ms))
        self._turns.reset()
        self._buffer.drop_until(self._buffer.end)  # also of a turn that could not be begun

    def _on_turn_event(self, event: TurnEvent) -> None:
        if isinstance(event, SpeechStarted):
            start = event.start_ms * SAMPLES_PER_MS if self._detects else self._buffer.start
            if self._turn is None:
                self._turn = self._new_turn(max(start, self._buffer.start))
            if self._detects is not None:
                self._outlet.event(
                    "input_audio_buffer.speech_started",
                    audio_start_ms=event.start_ms,
                    item_id=self._turn.item_id,
                )
                self._hooks.speech_started()
            return
        turn = self._turn
        if turn is None:  # it could not be begun, and the client was told
            return
        turn.voiced_end = max(turn.voiced_end, event.voiced_end_ms * SAMPLES_PER_MS)
        if isinstance(event, SpeechPaused):
            self._look(turn, urgent=True)
        elif self._detects is not None:
            self._outlet.event(
                "input_audio_buffer.speech_stopped",
                audio_end_ms=event.end_ms,
                item_id=turn.item_id,
            )
            self._commit(turn, event.end_ms * SAMPLES_PER_MS, self._detects)

    def _new_turn(self, start: int) -> Turn:
        return Turn(new_item_id(), start, self._new_transcription(self._settings))

    def _new_transcription(self, settings: SessionSettings) -> LiveTranscription:
        wanted = settings.audio.input.transcription
        return self._engine.transcribe_live(
            LiveTranscriptRequest(
                id=self._session_id,
                model_id=_model_name(settings) or "",
                language=wanted_language(wanted.language) if wanted else None,
                prompt=wanted.prompt if wanted else None,
            ),
            is_abandoned=self._is_abandoned,
        )

    def _commit(self, turn: Turn, end: int, detection: TurnDetection | None) -> None:
        end = min(end, self._buffer.end)
        turn.samples = self._buffer.read(turn.start, end)
        self._buffer.drop_until(end)
        self._turn = None
        item = turn.item = Item(type="message", id=turn.item_id, role="user")
        content = Content("input_audio", None)
        item.content.append(content)
        self._kept.keep(content, turn.samples)
        previous_id = self._conversation.add(item)
        self._outlet.event(
            "input_audio_buffer.committed", item_id=item.id, previous_item_id=previous_id
        )
        self._outlet.event(
            "conversation.item.added", item=item.body(), previous_item_id=previous_id
        )
        self._finish(turn, 0, detection)

    # -- from turns to words ------------------------------------------------------------------

    def _look(self, turn: Turn, *, urgent: bool) -> None:
        """Write down what was said so far, unless that is being done."""
        if turn.is_being_heard:
            return
        end = self._buffer.end

        def then(failure: Exception | None) -> None:
            if turn.when_heard is not None:  # committed meanwhile
                turn.when_heard()
                return
            if failure is not None:  # the next look, or the commit, tries again
                log.info("A turn was not written down so far", exc_info=failure)
                return
            if turn.heard_until == end:
                self._send_delta(turn, 0, turn.agreed.add(turn.text))
                self._hooks.heard_so_far(turn.text)
            if turn is self._turn and self._turns.is_paused and not turn.is_settled:
                self._look(turn, urgent=True)

        self._ears.hear(turn, self._buffer.read(turn.start, end), end, urgent=urgent, then=then)

    def _finish(self, turn: Turn, index: int, detection: TurnDetection | None) -> None:
        """Bring a committed turn's words to their end, then tell."""
        self._pending.append(turn)
        samples = turn.samples
        assert samples is not None
        end = min(turn.start + len(samples), turn.voiced_end + 2 * SETTLED_SAMPLES)

        def then(failure: Exception | None) -> None:
            self._pending.remove(turn)
            turn.transcription.close()
            self._tell(turn, index, failure, detection)

        def hear() -> None:
            if turn.is_settled:
                then(None)
            else:
                spoken = samples[: end - turn.start]
                self._ears.hear(turn, spoken, end, urgent=True, then=then)

        if turn.is_being_heard:
            turn.when_heard = hear  # it may turn out to be all that was said
        else:
            hear()

    def _tell(
        self, turn: Turn, index: int, failure: Exception | None, detection: TurnDetection | None
    ) -> None:
        item = turn.item
        assert item is not None and turn.samples is not None
        where = {"item_id": item.id, "content_index": index}
        item.content[index].text = "" if failure else turn.text
        transcription = "conversation.item.input_audio_transcription"
        if failure is not None:
            self._outlet.event(f"{transcription}.failed", **where, error=error_fields(failure))
        elif self._settings.audio.input.transcription is not None:
            self._send_delta(turn, index, turn.agreed.finish(turn.text))
            seconds = round(len(turn.samples) / WHISPER_RATE_HZ, 3)
            self._outlet.event(
                f"{transcription}.completed",
                **where,
                transcript=turn.text,
                usage={"type": "duration", "seconds": seconds},
            )
        if item in self._conversation:  # else it was deleted
            self._outlet.event(
                "conversation.item.done",
                item=item.body(),
                previous_item_id=self._conversation.before(item),
            )
            self._hooks.turn_is_over(item, detection)

    def _send_delta(self, turn: Turn, index: int, delta: str) -> None:
        if delta and self._settings.audio.input.transcription is not None:
            self._outlet.event(
                "conversation.item.input_audio_transcription.delta",
                item_id=turn.item_id,
                content_index=index,
                delta=delta,
            )


def _turn_settings(settings: SessionSettings) -> TurnSettings:
    return (settings.audio.input.turn_detection or TurnDetection()).turns


def _model_name(settings: SessionSettings) -> str | None:
    wanted = settings.audio.input.transcription
    return without_hosted_name(wanted.model, "transcription") if wanted else None
