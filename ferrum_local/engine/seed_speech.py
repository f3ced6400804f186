"""The seed's three speech methods, in terms of the richer ones."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Sequence

import numpy as np

from ferrum_local.audio_types import SpeechRequest, TranscriptionRequest
from ferrum_local.engine.contracts import Engine
from ferrum_local.languages import wanted_language

_FRAME_S = 0.08  # of the codec that the seed's own voice had


def transcribe_bytes(engine: Engine, data: bytes, language: str | None) -> str:
    request = TranscriptionRequest(
        id=f"transcription-{uuid.uuid4().hex}",
        model_id="",
        file=io.BytesIO(data),
        language=wanted_language(language),
    )
    return "".join(segment.text for segment in engine.transcribe(request)).strip()


def synthesize_speech(
    engine: Engine, text: str, language: str | None, chunk_frames: int
) -> Iterator[Sequence[float]]:
    request = SpeechRequest(
        id=f"speech-{uuid.uuid4().hex}",
        model_id=engine.resolve_voice(None, wanted_language(language)),
        text=text,
        early=True,
    )
    # Started now, so that a text that cannot be said is refused before the first chunk.
    stream = engine.speak(request)
    n_chunk = max(1, round(chunk_frames * _FRAME_S * stream.sample_rate_hz))

    def chunks() -> Iterator[Sequence[float]]:
        try:
            for part in stream:
                samples = np.frombuffer(part.pcm, "<f4")
                for start in range(0, len(samples), n_chunk):
                    yield samples[start : start + n_chunk].tolist()
        finally:
            stream.close()

    return chunks()
