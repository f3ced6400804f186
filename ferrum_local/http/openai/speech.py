"""``POST /v1/audio/speech`` and ``GET /v1/audio/voices``."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import IO

import numpy as np
from flask import Blueprint, Response, request
from msgspec import UNSET

from ferrum_local.audio import wav
from ferrum_local.audio.encode import Encoder, make_encoder, rates_hz, usual_rate_hz
from ferrum_local.audio_types import AudioFormat, SpeechRequest, SpokenPart
from ferrum_local.engine.contracts import SpeechStream
from ferrum_local.http.bodies import json_response, read_json_body
from ferrum_local.http.model_use import model_in_use
from ferrum_local.http.openai.audio_call import (
    Patience,
    binary_stream,
    metadata,
    new_id,
    resolve,
)
from ferrum_local.http.openai.call import request_priority
from ferrum_local.http.openai.schemas.audio import (
    AudioDelta,
    AudioDone,
    PhraseTime,
    SpeechBody,
    TokenUsage,
    Voice,
    VoiceList,
    VoiceReference,
)
from ferrum_local.http.openai.validation import invalid, parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.request_context import current_record
from ferrum_local.http.sse import event, stream_response
from ferrum_local.http.state import state
from ferrum_local.languages import wanted_language

blueprint = Blueprint("openai_speech", __name__)

MEDIA_TYPES: dict[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
IN_MEMORY_BYTES = 8 * 1024 * 1024  # of a reply that is not streamed; the rest lies on disk
SEND_BYTES = 64 * 1024
# Names fields that no voice here can follow, but that clients send with every text: OpenAI's own
# tts-1 takes them in silence.
IGNORED_HEADER = "X-Ferrum-Ignored"


@blueprint.post("/v1/audio/speech")
@documented(
    summary="Speak a text",
    request=SpeechBody,
    stream=AudioDelta | AudioDone,
    binary=tuple(MEDIA_TYPES.values()),
)
def create_speech() -> Response:
    fields = parse_request(read_json_body(), SpeechBody)
    _check(fields)
    # OpenAI has no field "stream" here: who names a stream_format wants one.
    streamed = bool(fields.stream) or fields.stream_format is not None
    voice_id = _voice_id(fields)
    app = state()
    record = current_record()
    record.model = voice_id
    patience = Patience()
    with ExitStack() as held:
        held.enter_context(app.gate.admit())
        held.enter_context(model_in_use(voice_id, deadline_s=patience.limit_s))
        stream = app.engine.speak(
            SpeechRequest(
                id=new_id("speech"),
                model_id=voice_id,
                text=fields.input,
                speaker=None if fields.speaker is None else str(fields.speaker),
                speed=fields.speed or 1.0,
                volume=fields.volume or 1.0,
                normalize=fields.normalize is not False,
                early=streamed,
                priority=request_priority(),
                metadata=metadata(),
            )
        )
        held.callback(stream.close)
        held.enter_context(app.departures.watch(request.environ, stream.close))
        format_ = fields.response_format or "mp3"
        rate_hz = fields.sample_rate or usual_rate_hz(format_, stream.sample_rate_hz)
        encoder = make_encoder(format_, source_rate_hz=stream.sample_rate_hz, rate_hz=rate_hz)
        parts = _patient(stream, patience)
        if fields.stream_format == "sse":
            events = _events(parts, stream, encoder, with_times=bool(fields.timestamps))
            response = stream_response(events, on_close=held.pop_all().close)
        elif streamed:
            pieces = _first_pulled(_encoded(parts, encoder))
            response = binary_stream(
                pieces, media_type=MEDIA_TYPES[format_], on_close=held.pop_all().close
            )
        else:
            response = _whole(_encoded(parts, encoder), format_, rate_hz)
        response.headers["X-Sample-Rate"] = str(rate_hz)
        if fields.instructions and fields.instructions.strip():
            response.headers[IGNORED_HEADER] = "instructions"
        return response


@blueprint.get("/v1/audio/voices")
@documented(summary="List the voices of this server", response=VoiceList)
def list_voices() -> Response:
    return json_response(
        VoiceList(
            data=[
                Voice(
                    id=voice.id,
                    name=voice.id,
                    language=voice.language,
                    quality=voice.quality,
                    sample_rate=voice.sample_rate,
                    speakers=list(voice.speakers),
                    names=list(voice.names),
                    state=voice.state,
                )
                for voice in state().engine.voices()
            ]
        )
    )


def _check(fields: SpeechBody) -> None:
    if not fields.input.strip():
        raise invalid("input", "expected a text that is not empty")
    if fields.stream is False and fields.stream_format is not None:
        raise invalid("stream", "cannot be false together with stream_format")
    if fields.timestamps and fields.stream_format != "sse":
        raise invalid("timestamps", "only possible with stream_format sse")
    format_ = fields.response_format or "mp3"
    known = rates_hz(format_)
    if fields.sample_rate is not None and fields.sample_rate not in known:
        listed = ", ".join(map(str, known))
        raise invalid(
            "sample_rate", f"expected one of {listed} for {format_}, got {fields.sample_rate}"
        )


def _voice_id(fields: SpeechBody) -> str:
    """``voice`` decides; without it a ``model`` that is a voice's own name does."""
    info = resolve(fields.model, "speech")
    name = fields.voice.id if isinstance(fields.voice, VoiceReference) else fields.voice
    if not name and fields.model and fields.model in (info.id, *info.aliases):
        name = info.id
    return state().engine.resolve_voice(name, wanted_language(fields.language))


def _patient(stream: SpeechStream, patience: Patience) -> Iterator[SpokenPart]:
    for part in stream:
        patience.check()
        yield part


def _encoded(parts: Iterator[SpokenPart], encoder: Encoder) -> Iterator[bytes]:
    for part in parts:
        piece = encoder.add(np.frombuffer(part.pcm, "<f4"))
        if piece:
            yield piece
    last = encoder.finish()
    if last:
        yield last


def _first_pulled(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; the first is made now, so that what fails at once is still a status."""
    first = next(pieces, b"")

    def all_of_them() -> Iterator[bytes]:
        if first:
            yield first
        yield from pieces

    return all_of_them()


def _events(
    parts: Iterator[SpokenPart], stream: SpeechStream, encoder: Encoder, *, with_times: bool
) -> Iterator[bytes]:
    n_input = 0
    end_s = 0.0
    for part in parts:
        n_input += part.n_tokens
        end_s = part.end_s
        times = [PhraseTime(text=part.text, start=part.start_s, end=part.end_s)]
        yield event(
            AudioDelta(
                audio=_base64(encoder.add(np.frombuffer(part.pcm, "<f4"))),
                timestamps=times if with_times and part.text else UNSET,
            )
        )
    last = encoder.finish()
    if last:
        yield event(AudioDelta(audio=_base64(last)))
    n_output = round(end_s * stream.sample_rate_hz / stream.frame_samples)
    yield event(
        AudioDone(
            usage=TokenUsage(
                input_tokens=n_input, output_tokens=n_output, total_tokens=n_input + n_output
            )
        )
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _whole(pieces: Iterator[bytes], format_: AudioFormat, rate_hz: int) -> Response:
    """All of it, then its size; long speech lies on disk meanwhile."""
    # Closed by the reply's own end, however it ends.
    file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)
    try:
        n_bytes = sum(file.write(piece) for piece in pieces)
        if format_ == "wav":
            file.seek(0)
            file.write(wav.header(rate_hz, n_bytes - wav.HEADER_BYTES))
        file.seek(0)
    except BaseException:
        file.close()
        raise
    pieces = iter(partial(file.read, SEND_BYTES), b"")
    response = binary_stream(pieces, media_type=MEDIA_TYPES[format_], on_close=file.close)
    response.headers["Content-Length"] = str(n_bytes)
    return response
