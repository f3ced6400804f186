"""A scripted engine that hears and speaks: a beep for each clause, held up or failing on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ferrum_local.audio_types import (
    SpeechRequest,
    SpokenPart,
    TranscribedSegment,
    TranscriptionFacts,
    TranscriptionRequest,
    VoiceInfo,
)
from ferrum_local.engine.contracts import ModelInfo
from ferrum_local.errors import Cancelled, InvalidRequest
from ferrum_local.tts.clause_feed import ClauseFeed
from tests.fakes import HELLO, POLL_S, ScriptedEngine, Step, model_info

RATE_HZ = 22_050
BEEP_S = 0.1
VOICE = model_info("joe", kind="speech")
WHISPER = model_info("ear", kind="transcription")
HEARD = " What is the time?"


class ScriptedSpeech:
    """One text, clause by clause; before each but the first ``held`` the engine's gate is waited
    for, and at ``fails_at`` its error raised."""

    def __init__(
        self, engine: SpeakingEngine, request: SpeechRequest, texts: Iterable[str]
    ) -> None:
        self.request = request
        self.model_id = VOICE.id
        self.sample_rate_hz = RATE_HZ
        self.frame_samples = 256
        self.closed = threading.Event()
        self._engine = engine
        self._texts = texts

    def __iter__(self) -> Iterator[SpokenPart]:
        for i, clause in enumerate(self._clauses()):
            if self._engine.fails_at == i:
                raise self._engine.error
            while i >= self._engine.n_free and not self._engine.gate.wait(POLL_S):
                self._check()
            self._check()
            beep = np.full(round(BEEP_S * RATE_HZ), 0.25, "<f4")
            yield SpokenPart(
                text=clause.strip(), pcm=beep.tobytes(), start_s=i * BEEP_S,
                end_s=(i + 1) * BEEP_S, written=clause,
            )  # fmt: skip

    def _clauses(self) -> Iterator[str]:
        feed = ClauseFeed(early=self.request.early)
        for text in self._texts:
            yield from feed.add(text)
        yield from feed.finish()

    def _check(self) -> None:
        if self.closed.is_set():
            raise Cancelled("The request was cancelled.")

    def close(self) -> None:
        self.closed.set()


class ScriptedTranscription:
    """Hears the same in every recording."""

    def __init__(self, request: TranscriptionRequest) -> None:
        self.request = request
        self.facts = TranscriptionFacts(model_id=WHISPER.id, language="en", duration_s=1.0)
        self._left = [TranscribedSegment(id=0, start=0.0, end=1.0, text=HEARD)]

    def poll(self, timeout_s: float) -> TranscribedSegment | None:
        if not self._left:
            raise StopIteration
        return self._left.pop()

    def __iter__(self) -> Iterator[TranscribedSegment]:
        yield from self._left

    def close(self) -> None:
        self._left.clear()


class SpeakingEngine(ScriptedEngine):
    """``n_free`` clauses are spoken at once, the others when ``gate`` is set."""

    def __init__(
        self,
        script: Sequence[Step] = HELLO,
        *,
        n_free: int = 1_000,
        fails_at: int | None = None,
        error: Exception | None = None,
        models: Sequence[ModelInfo] = (model_info(), VOICE, WHISPER),
    ) -> None:
        super().__init__(script, models=models)
        self.n_free = n_free
        self.gate = threading.Event()
        self.fails_at = fails_at
        self.error = error or RuntimeError("the voice broke")
        self.speeches: list[ScriptedSpeech] = []
        self.heard: list[ScriptedTranscription] = []
        self.deaf_with: Exception | None = None

    def speak(self, request: SpeechRequest) -> ScriptedSpeech:  # type: ignore[override]
        return self.speak_while_written(request, [request.text])

    def speak_while_written(self, request: SpeechRequest, texts: Iterable[str]) -> ScriptedSpeech:
        self.resolve_voice(request.model_id)
        speech = ScriptedSpeech(self, request, texts)
        self.speeches.append(speech)
        return speech

    def resolve_voice(self, name: str | None, language: str | None = None) -> str:
        default = self.resolve_model(None, "speech")
        if name not in (None, "", default.id, "alloy"):
            raise InvalidRequest(
                f"voice: there is no {name!r}", param="voice", code="voice_not_found"
            )
        return default.id

    def transcribe(  # type: ignore[override]
        self, request: TranscriptionRequest
    ) -> ScriptedTranscription:
        if self.deaf_with is not None:
            raise self.deaf_with
        self.heard.append(ScriptedTranscription(request))
        return self.heard[-1]

    def voices(self) -> tuple[VoiceInfo, ...]:
        return (
            VoiceInfo(
                id=VOICE.id, language="en-us", quality="medium", sample_rate=RATE_HZ, speakers=(),
                names=("alloy",), state="ready",
            ),
        )  # fmt: skip
