"""Audio in a conversation → text, for models without ears of their own.

Recordings are written down by Whisper; an earlier spoken answer is looked up by its id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec
from flask import request
from msgspec import UNSET

from ferrum_local.audio import wav
from ferrum_local.audio.encode import PCM_RATE_HZ
from ferrum_local.audio_types import TranscriptionRequest
from ferrum_local.errors import AudioTooLong, FerrumError, InvalidAudio, ModelNotFound
from ferrum_local.http.errors import ApiError, as_api_error
from ferrum_local.http.openai.audio_call import Patience, metadata, new_id, polled
from ferrum_local.http.openai.schemas import ChatMessage, ContentPart, InputAudio
from ferrum_local.http.openai.validation import invalid
from ferrum_local.http.state import state


def with_audio_as_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same conversation, where everything that was heard or spoken is text.

    Blocks until the recordings are written down; one that was sent before is remembered.

    :raises ApiError: naming the part: no base64, no audio, too long, no Whisper model, an answer
        that was forgotten.
    """
    return [_as_text(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _as_text(message: ChatMessage, path: str) -> ChatMessage:
    if message.role == "assistant" and message.audio is not None:
        content = message.content
        if content is None or content is UNSET:
            content = _transcript(message.audio.id, message.audio.transcript, f"{path}.audio.id")
        return msgspec.structs.replace(message, content=content, audio=None)
    if not isinstance(message.content, list):
        return message
    parts = [
        _part_as_text(part, message.role, f"{path}.content[{i}]")
        for i, part in enumerate(message.content)
    ]
    return msgspec.structs.replace(message, content=parts)


def _transcript(id_: str, given: str | None, path: str) -> str:
    known = state().transcripts.get(id_)
    if known is None:
        known = given
    if known is None:
        raise invalid(
            path,
            f"no spoken answer {id_[:60]!r} is known, or it has expired; send its transcript as "
            "content instead",
            code="audio_not_found",
        )
    return known


def _part_as_text(part: ContentPart, role: str, path: str) -> ContentPart:
    if part.type != "input_audio":
        return part
    if role != "user":
        raise invalid(path, "only messages of role user have recordings")
    if part.input_audio is None:
        raise invalid(
            f"{path}.input_audio",
            "required in a part of type input_audio",
            code="missing_required_parameter",
        )
    recording = _recording(part.input_audio, f"{path}.input_audio.data")
    return ContentPart(type="text", text=_written_down(recording, f"{path}.input_audio"))


def _recording(audio: InputAudio, path: str) -> bytes:
    """The file that was sent; bare samples get a header."""
    try:
        data = base64.b64decode("".join(audio.data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(path, "expected base64 of a recording (no data URL)") from None
    if not data:
        raise invalid(path, "expected a recording, got nothing", code="invalid_audio")
    if audio.format != "pcm16":
        return data
    if len(data) % 2:
        raise invalid(path, f"expected samples of 2 bytes, got {len(data)} bytes")
    return wav.header(PCM_RATE_HZ, len(data)) + data


def _written_down(recording: bytes, path: str) -> str:
    app = state()
    try:
        model_id = app.engine.resolve_model(None, "transcription").id
    except ModelNotFound as error:
        raise _at(error, path) from error
    # A conversation is sent again with each turn: what was heard once need not be heard again.
    key = f"{model_id} {hashlib.sha256(recording).hexdigest()}"
    text = app.transcripts.get(key)
    if text is not None:
        return text
    patience = Patience()
    job = TranscriptionRequest(
        id=new_id("transcription"),
        model_id=model_id,
        file=io.BytesIO(recording),
        metadata=metadata(),
    )
    with ExitStack() as held:
        held.enter_context(app.gate.admit())
        try:
            stream = app.engine.transcribe(job)
            held.callback(stream.close)
            held.enter_context(app.departures.watch(request.environ, stream.close))
            segments = [segment for segment in polled(stream, patience) if segment is not None]
        except (InvalidAudio, AudioTooLong) as error:
            raise _at(error, f"{path}.data") from error
    text = "".join(segment.text for segment in segments).strip()
    app.transcripts.put(key, text)
    return text


def _at(error: FerrumError, path: str) -> ApiError:
    """The same error, of the field at ``path``."""
    as_it_was = as_api_error(error)
    message = as_it_was.message.removeprefix(f"{error.param}: ")
    return ApiError(f"{path}: {message}", status=as_it_was.status, param=path, code=as_it_was.code)
