"""Chat answers that are spoken: the model writes, a voice reads it out meanwhile."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
from flask import Response, request
from msgspec import UNSET

from ferrum_local.audio import wav
from ferrum_local.audio.encode import make_encoder, usual_rate_hz
from ferrum_local.audio_types import AudioFormat
from ferrum_local.engine.assembly import ResponseAssembler
from ferrum_local.engine.contracts import InferenceStream
from ferrum_local.engine.spoken_answer import AnswerAudio, AnswerText, SpokenAnswer
from ferrum_local.errors import Cancelled, GenerationFailed, InvalidRequest
from ferrum_local.http.bodies import json_response
from ferrum_local.http.model_use import model_in_use
from ferrum_local.http.openai.audio_call import Patience, new_id
from ferrum_local.http.openai.call import Call
from ferrum_local.http.openai.chunks import ChatChunks
from ferrum_local.http.openai.generation import closing_events
from ferrum_local.http.openai.parallel import TICK_S
from ferrum_local.http.openai.responses import chat_completion, fill_record
from ferrum_local.http.openai.schemas import (
    AudioParam,
    ChatCompletionRequest,
    SpokenAudio,
    SpokenAudioDelta,
)
from ferrum_local.http.openai.schemas.audio import VoiceReference
from ferrum_local.http.openai.tools import ToolOptions
from ferrum_local.http.openai.validation import invalid, unsupported
from ferrum_local.http.request_context import current_record
from ferrum_local.http.sse import KEEP_ALIVE, event, stream_response
from ferrum_local.http.state import state
from ferrum_local.http.transcripts import TranscriptStore
from ferrum_local.types import FinishReason, InferenceRequest, StreamChunk


def wanted_audio(fields: ChatCompletionRequest) -> AudioParam | None:
    """How the answer is to be spoken; None: it is not.

    :raises ApiError: 400 for fields that do not go together.
    """
    if "audio" not in (fields.modalities or ()):
        if fields.audio is not None:
            raise invalid("audio", 'only possible with "audio" in modalities')
        return None
    if fields.audio is None:
        raise invalid(
            "audio", 'required with "audio" in modalities', code="missing_required_parameter"
        )
    if fields.stream and fields.audio.format != "pcm16":
        raise unsupported("audio.format", "expected pcm16, the only one that can be streamed")
    if (fields.n or 1) > 1:
        raise unsupported("n", "one answer at a time can be spoken")
    if fields.logprobs:
        raise unsupported("logprobs", "spoken answers have none")
    return fields.audio


def spoken_answer(
    call: Call, job: InferenceRequest, audio: AudioParam, tools: ToolOptions
) -> Response:
    """Generate, speak and reply. What can be refused is refused before the first byte."""
    app = state()
    record = current_record()
    record.model = call.envelope.model
    patience = Patience()
    with ExitStack() as held:
        held.enter_context(app.gate.admit())
        voice = _voice(audio)
        # Both are there before either is used: who leaves while one is loaded waits no longer.
        held.enter_context(model_in_use(voice, deadline_s=call.deadline_s))
        held.enter_context(
            model_in_use(
                call.envelope.model, deadline_s=call.deadline_s, keep_alive_s=call.keep_alive_s
            )
        )
        answer = held.enter_context(
            SpokenAnswer(app.engine, voice=voice, priority=job.priority, metadata=job.metadata)
        )
        stream = held.enter_context(app.engine.infer_stream(job))
        held.callback(lambda: fill_record(record, stream.usage, stream.timings))

        def stop() -> None:
            app.engine.cancel(job.id)
            answer.close()

        held.enter_context(app.departures.watch(request.environ, stop))
        turn = _Turn(answer, stream, audio, app.transcripts, patience)
        if not call.stream:
            return json_response(turn.whole(call, tools))

        def note_gone() -> None:
            record.client_left = True

        events = turn.events(call, tools, app.config.keep_alive_s, note_gone)
        return stream_response(events, on_close=held.pop_all().close)


def _voice(audio: AudioParam) -> str:
    """:raises ApiError: 400, there is no such voice."""
    name = audio.voice.id if isinstance(audio.voice, VoiceReference) else audio.voice
    try:
        return state().engine.resolve_voice(name)
    except InvalidRequest as error:
        if error.param != "voice":
            raise
        problem = error.message.removeprefix("voice: ")
        raise invalid("audio.voice", problem, code=error.code) from error


class _Turn:
    """One spoken answer on its way out."""

    def __init__(
        self,
        answer: SpokenAnswer,
        stream: InferenceStream,
        audio: AudioParam,
        transcripts: TranscriptStore,
        patience: Patience,
    ) -> None:
        self._answer = answer
        self._stream = stream
        self._format: AudioFormat = "pcm" if audio.format == "pcm16" else audio.format
        self._rate_hz = usual_rate_hz(self._format, answer.sample_rate_hz)
        self._encoder = make_encoder(
            self._format, source_rate_hz=answer.sample_rate_hz, rate_hz=self._rate_hz
        )
        self._transcripts = transcripts
        self._patience = patience
        self._id = new_id("audio")
        self._text = ""

    def whole(self, call: Call, tools: ToolOptions) -> msgspec.Struct:
        assembler = ResponseAssembler(1)
        data: list[bytes] = []
        for part in self._parts():
            if isinstance(part, AnswerAudio):
                data.append(self._encoder.add(part.samples))
            elif isinstance(part, StreamChunk):
                assembler.add(part)
        self._patience.check()
        data.append(self._encoder.finish())
        response = assembler.response(call.envelope.id, self._stream)
        audio = None
        if self._text:
            audio = SpokenAudio(
                id=self._id,
                data=_base64(self._with_size(b"".join(data))),
                expires_at=self._transcripts.put(self._id, self._text),
                transcript=self._text,
            )
        return chat_completion(
            call.envelope, response, with_logprobs=False, legacy_calls=tools.is_legacy, audio=audio
        )

    def events(
        self, call: Call, tools: ToolOptions, keep_alive_s: float, on_gone: Callable[[], None]
    ) -> Iterator[bytes]:
        """:param on_gone: called when the client left; the events end then."""
        writer = ChatChunks(call, n=1, with_logprobs=False, tools=tools, spoken=True)
        for opening in writer.opening():
            yield event(opening)
        finish: FinishReason | None = None
        wrote_s = time.monotonic()
        for part in self._until_gone():
            contents: list[msgspec.Struct] = []
            if isinstance(part, AnswerText):
                contents.append(writer.audio(self._delta(transcript=part.text)))
            elif isinstance(part, AnswerAudio):
                data = self._encoder.add(part.samples)
                if data:
                    contents.append(writer.audio(self._delta(data=_base64(data))))
            elif part is not None:
                finish = part.finish_reason or finish
                contents += writer.content(0, part, self._stream)
            for content in contents:
                wrote_s = time.monotonic()
                yield event(content)
            if not contents and time.monotonic() - wrote_s >= keep_alive_s:
                wrote_s = time.monotonic()
                yield KEEP_ALIVE
        if self._patience.client_left():
            on_gone()
            return
        if finish is None:
            raise GenerationFailed("The engine's stream ended before its choice had.")
        if self._text:
            data = self._encoder.finish()
            if data:
                yield event(writer.audio(self._delta(data=_base64(data))))
            expires_at = self._transcripts.put(self._id, self._text)
            yield event(writer.audio(self._delta(expires_at=expires_at)))
        yield from closing_events(
            call, writer, (0, 0, finish), self._stream.usage, self._stream.timings, spoken=True
        )

    def _parts(self) -> Iterator[AnswerText | AnswerAudio | StreamChunk | None]:
        """As they come, and None when there was no token for a moment."""
        for part in self._answer.parts(self._pieces(), stop_text=self._stream.close):
            self._patience.check()
            if isinstance(part, AnswerText):
                self._text += part.text
            yield part

    def _until_gone(self) -> Iterator[AnswerText | AnswerAudio | StreamChunk | None]:
        try:
            yield from self._parts()
        except Cancelled:
            if not self._patience.client_left():
                raise

    def _pieces(self) -> Iterator[str | StreamChunk | None]:
        while True:
            try:
                chunk = self._stream.poll(TICK_S)
            except StopIteration:
                return
            if chunk is not None and chunk.text:
                yield chunk.text
            yield chunk

    def _delta(
        self,
        *,
        transcript: str | None = None,
        data: str | None = None,
        expires_at: int | None = None,
    ) -> SpokenAudioDelta:
        return SpokenAudioDelta(
            id=self._id,
            transcript=UNSET if transcript is None else transcript,
            data=UNSET if data is None else data,
            expires_at=UNSET if expires_at is None else expires_at,
        )

    def _with_size(self, data: bytes) -> bytes:
        if self._format != "wav":
            return data
        n_bytes = len(data) - wav.HEADER_BYTES
        return wav.header(self._rate_hz, n_bytes) + data[wav.HEADER_BYTES :]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
