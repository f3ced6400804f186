"""The engine's part for speech: which models are there, and the requests that use them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from ferrum_local.audio_types import (
    WHISPER_RATE_HZ,
    AudioConfig,
    LiveTranscriptRequest,
    SpeechRequest,
    TranscribedSegment,
    TranscriptionRequest,
    VoiceInfo,
)
from ferrum_local.engine.contracts import ModelInfo, SpeechDetector, SpeechMetrics
from ferrum_local.engine.jobs import JobQueue, Running, Turns
from ferrum_local.engine.live_speech import LiveTranscriptionJob
from ferrum_local.engine.speech_jobs import Counts, SpeechJob, TranscriptionJob
from ferrum_local.errors import (
    AudioTooLong,
    FerrumError,
    InvalidRequest,
    ModelLoadError,
    Unavailable,
)
from ferrum_local.types import ModelSpec

if TYPE_CHECKING:
    from ferrum_local.stt.model import Whisper
    from ferrum_local.tts.synthesis import Utterance
    from ferrum_local.tts.voice import Voice

logger = logging.getLogger(__name__)

_LOADING_RETRY_S = 2.0


class SpeechRuntimes:
    """The Whisper models and voices of one engine. ``load`` does the work.

    :param on_start: told of each accepted request. :param on_done: of its end, and why.
    """

    def __init__(
        self,
        config: AudioConfig,
        *,
        on_start: Callable[[Running], None],
        on_done: Callable[[Running, FerrumError | None], None],
    ) -> None:
        self._config = config
        self._on_start = on_start
        self._on_done = on_done
        self._whisper: dict[str, Whisper] = {}
        self._voices: dict[str, Voice] = {}
        self._errors: dict[str, str] = {}
        self._counts: dict[str, Counts] = {}
        self._jobs: dict[str, JobQueue] = {}
        self._turns: dict[str, Turns] = {}
        self._live_turns: dict[str, Turns] = {}

    # -- life --------------------------------------------------------------------------------

    def load(self) -> None:
        """:raises ModelLoadError: for a Whisper model that cannot be loaded.

        A voice that cannot speak is told in the log and in the status; the rest serves on.
        """
        for spec in self._config.whisper_models:
            self._timed(spec, self._load_whisper)
        for spec in self._config.voices:
            try:
                self._timed(spec, self._load_voice)
            except ModelLoadError as error:
                self._errors[spec.id] = error.message
                logger.error("%s", error.message)

    def _timed(self, spec: ModelSpec, load: Callable[[ModelSpec], None]) -> None:
        started_s = time.monotonic()
        counts = self._counts[spec.id] = Counts()
        load(spec)
        counts.load_time_s = time.monotonic() - started_s

    def _load_whisper(self, spec: ModelSpec) -> None:
        from ferrum_local.stt.model import LIVE_WORKERS, Whisper, n_workers

        options = self._config.stt
        self._live_turns[spec.id] = Turns(spec.id, n=LIVE_WORKERS, max_waiting=options.max_queue)
        self._jobs[spec.id] = JobQueue(
            spec.id, n_workers=n_workers(options), max_queue=options.max_queue
        )
        try:
            self._whisper[spec.id] = Whisper(spec.path, options)
        except ModelLoadError as error:
            self._errors[spec.id] = error.message
            raise

    def _load_voice(self, spec: ModelSpec) -> None:
        from ferrum_local.tts.voice import Voice, check_in_child, n_workers

        options = self._config.tts
        check_in_child(spec.path)
        self._turns[spec.id] = Turns(spec.id, n=n_workers(options), max_waiting=options.max_queue)
        self._voices[spec.id] = Voice(spec.path, options)

    def close(self) -> None:
        for jobs in self._jobs.values():
            jobs.close()

    # -- models --------------------------------------------------------------------------------

    def infos(self) -> tuple[ModelInfo, ...]:
        specs = [(spec, "transcription") for spec in self._config.whisper_models]
        specs += [(spec, "speech") for spec in self._config.voices]
        return tuple(self._info(spec, kind) for spec, kind in specs)

    def _info(self, spec: ModelSpec, kind: str) -> ModelInfo:
        loaded = spec.id in self._whisper or spec.id in self._voices
        error = self._errors.get(spec.id)
        model = self._whisper.get(spec.id)
        translates = model is not None and model.is_multilingual
        try:
            created = int(os.stat(spec.path).st_mtime)
            size_bytes = _size_bytes(spec.path)
        except OSError:  # deleted since it was loaded: the model itself still answers
            created, size_bytes = 0, 0
        return ModelInfo(
            id=spec.id,
            kind=kind,
            aliases=spec.aliases,
            path=spec.path,
            state="failed" if error else "ready" if loaded else "loading",
            created=created,
            size_bytes=size_bytes,
            context_length=0,
            capabilities=(kind, "translation") if translates else (kind,),
            error=error,
        )

    def voices(self) -> tuple[VoiceInfo, ...]:
        names = self._config.tts.names
        first = self._config.voices[0].id if self._config.voices else None
        found = []
        for spec in self._config.voices:
            voice = self._voices.get(spec.id)
            found.append(
                VoiceInfo(
                    id=spec.id,
                    language=voice.language if voice else "",
                    quality=voice.quality if voice else "",
                    sample_rate=voice.sample_rate_hz if voice else 0,
                    speakers=voice.speakers if voice else (),
                    names=(
                        *spec.aliases,
                        *(name for name, target in names.items() if (target or first) == spec.id),
                    ),
                    state=self._info(spec, "speech").state,
                )
            )
        return tuple(found)

    # -- requests --------------------------------------------------------------------------------

    def transcribe(self, request: TranscriptionRequest) -> TranscriptionJob:
        """See the contract."""
        from ferrum_local.stt.transcriber import Transcription

        model = self._whisper.get(request.model_id)
        if model is None:
            raise self._not_ready(request.model_id)
        check_audio(request.file, self._config.stt.max_duration_s)
        job = TranscriptionJob(request)
        transcription = job.transcription = Transcription(
            model, request, self._config.stt, is_cancelled=job.is_cancelled
        )
        counts = self._counts[request.model_id]
        started_s = time.monotonic()

        def done(error: FerrumError | None) -> None:
            counts.audio_s += transcription.duration_s
            self._on_done(job, error)

        def work() -> Iterator[TranscribedSegment]:
            nonlocal started_s
            started_s = time.monotonic()
            try:
                yield from transcription.segments()
            finally:
                counts.busy_s += time.monotonic() - started_s

        self._on_start(job)
        try:
            self._jobs[request.model_id].submit(job, work, done)
        except FerrumError as error:
            self._on_done(job, error)
            raise
        counts.requests += 1
        return job

    def detector(self) -> SpeechDetector:
        from ferrum_local.stt.voice_activity import VoiceActivity

        return VoiceActivity()

    def transcribe_live(self, request: LiveTranscriptRequest) -> LiveTranscriptionJob:
        """See the contract."""
        from ferrum_local.stt.live import LiveTranscript

        model = self._whisper.get(request.model_id)
        if model is None:
            raise self._not_ready(request.model_id)
        counts = self._counts[request.model_id]
        job = LiveTranscriptionJob(
            LiveTranscript(model, request), self._live_turns[request.model_id], counts
        )
        counts.requests += 1
        return job

    def speak(self, request: SpeechRequest) -> SpeechJob:
        """See the contract."""
        from ferrum_local.tts.synthesis import plan

        voice = self._voice(request)
        return self._started(request, plan(request, voice, max_chars=self._config.tts.max_chars))

    def speak_while_written(self, request: SpeechRequest, texts: Iterable[str]) -> SpeechJob:
        """See the contract."""
        from ferrum_local.tts.synthesis import plan_while_written

        return self._started(request, plan_while_written(request, self._voice(request), texts))

    def _voice(self, request: SpeechRequest) -> Voice:
        voice = self._voices.get(request.model_id)
        if voice is None:
            raise self._not_ready(request.model_id)
        voice.speaker_id(request.speaker)
        return voice

    def _started(self, request: SpeechRequest, utterances: Iterable[Utterance]) -> SpeechJob:
        turns = self._turns[request.model_id]
        turns.check()
        counts = self._counts[request.model_id]
        counts.requests += 1
        job = SpeechJob(request, self._voice(request), utterances, turns, counts, self._on_done)
        self._on_start(job)
        return job

    def resolve_voice(self, name: str | None, language: str | None, *, default: str) -> str:
        """See the contract. ``default``: the id of the first voice."""
        if not name or name == "default" or not self._config.tts.names.get(name, name):
            return self._voice_for(language, default)
        wanted = self._config.tts.names.get(name, name)
        for spec in self._config.voices:
            if wanted == spec.id or wanted in spec.aliases:
                voice = self._voices.get(spec.id)
                if voice is not None and language not in (None, voice.language_family):
                    raise InvalidRequest(
                        f"language: the voice {spec.id} speaks {voice.language}, not {language}",
                        param="language",
                    )
                return spec.id
        known = [*(spec.id for spec in self._config.voices), *self._config.tts.names]
        raise InvalidRequest(
            f"voice: there is no {name[:60]!r}; known: {', '.join(known)}",
            param="voice",
            code="voice_not_found",
        )

    def _voice_for(self, language: str | None, default: str) -> str:
        first = self._voices.get(default)
        if language is None or (first is not None and first.language_family == language):
            return default
        for id_, voice in self._voices.items():
            if voice.language_family == language:
                return id_
        spoken = ", ".join(sorted({voice.language for voice in self._voices.values()}))
        raise InvalidRequest(
            f"language: no voice speaks {language!r}; there are voices for {spoken or 'none'}",
            param="language",
        )

    def sample_rate_hz(self, model_id: str) -> int:
        voice = self._voices.get(model_id)
        if voice is None:
            raise self._not_ready(model_id)
        return voice.sample_rate_hz

    def metrics(self) -> tuple[SpeechMetrics, ...]:
        found = []
        for info in self.infos():
            counts = self._counts.get(info.id)
            queue = self._jobs.get(info.id) or self._turns.get(info.id)
            if counts is not None:
                found.append(
                    SpeechMetrics(
                        model_id=info.id,
                        kind=info.kind,
                        running=queue.n_running if queue else 0,
                        waiting=queue.n_waiting if queue else 0,
                        requests_total=counts.requests,
                        audio_seconds_total=counts.audio_s,
                        busy_seconds_total=counts.busy_s,
                        load_time_s=counts.load_time_s,
                    )
                )
        return tuple(found)

    def _not_ready(self, model_id: str) -> FerrumError:
        error = self._errors.get(model_id)
        if error is not None:
            return ModelLoadError(error)
        return Unavailable(
            f"{model_id} is still loading.", retry_after_s=_LOADING_RETRY_S, code="loading"
        )


def check_audio(file: BinaryIO, max_duration_s: float) -> None:
    """Find out what can be wrong with a recording before it waits for a worker.

    :raises InvalidAudio: nothing of it can be decoded. AudioTooLong: by what it says itself.
    """
    from ferrum_local.audio.decode import declared_duration_s, decode

    next(decode(file, sample_rate_hz=WHISPER_RATE_HZ))
    if (declared_duration_s(file) or 0.0) > max_duration_s:
        raise AudioTooLong(max_duration_s)


def _size_bytes(path: str) -> int:
    if os.path.isdir(path):
        return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
    return os.stat(path).st_size
