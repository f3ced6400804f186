"""The engine's part for speech: which models are there, and the requests that use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

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
from ferrum_local.engine.jobs import FairTurns, JobQueue, Running
from ferrum_local.engine.live_speech import LiveTranscriptionJob
from ferrum_local.engine.speech_jobs import Counts, SpeechJob, TranscriptionJob
from ferrum_local.errors import (
    AudioTooLong,
    FerrumError,
    InvalidRequest,
    Unavailable,
)
from ferrum_local.languages import language_code
from ferrum_local.types import ModelSpec

if TYPE_CHECKING:
    from ferrum_local.stt.model import Whisper
    from ferrum_local.tts.synthesis import Utterance
    from ferrum_local.tts.voice import Voice

OnDone: TypeAlias = Callable[[Running, FerrumError | None], None]

_LOADING_RETRY_S = 2.0


class SpeechRuntimes:
    """The loaded Whisper models and voices of one engine.

    :param on_start: told of each accepted request.
    """

    def __init__(
        self,
        config: AudioConfig,
        *,
        on_start: Callable[[Running], None],
    ) -> None:
        self._config = config
        self._on_start = on_start
        self._whisper: dict[str, Whisper] = {}
        self._voices: dict[str, Voice] = {}
        self._counts: dict[str, Counts] = {}
        self._jobs: dict[str, JobQueue] = {}
        self._turns: dict[str, FairTurns] = {}
        self._live_turns: dict[str, FairTurns] = {}

    # -- life --------------------------------------------------------------------------------

    def load(self, spec: ModelSpec) -> None:
        """:raises ModelLoadError: it cannot be used."""
        started_s = time.monotonic()
        if spec.kind == "transcription":
            self._load_whisper(spec)
        else:
            self._load_voice(spec)
        self._counts.setdefault(spec.id, Counts()).load_time_s = time.monotonic() - started_s

    def _load_whisper(self, spec: ModelSpec) -> None:
        from ferrum_local.stt.model import LIVE_WORKERS, Whisper, n_workers

        options = self._config.stt
        model = Whisper(spec.path, options)
        # Without a limit: who speaks waits once at most, and sessions have a limit of their own.
        self._live_turns[spec.id] = FairTurns(spec.id, n=LIVE_WORKERS)
        self._jobs[spec.id] = JobQueue(
            spec.id, n_workers=n_workers(options), max_queue=options.max_queue
        )
        self._whisper[spec.id] = model

    def _load_voice(self, spec: ModelSpec) -> None:
        from ferrum_local.tts.voice import Voice, check_in_child, n_workers

        options = self._config.tts
        check_in_child(spec.path)
        voice = Voice(spec.path, options)
        self._turns[spec.id] = FairTurns(
            spec.id, n=n_workers(options), max_waiting=options.max_queue
        )
        self._voices[spec.id] = voice

    def unload(self, model_id: str) -> None:
        """Forget a model that nobody uses, if it is there; its memory is freed with it."""
        self._whisper.pop(model_id, None)
        self._voices.pop(model_id, None)
        self._turns.pop(model_id, None)
        self._live_turns.pop(model_id, None)
        jobs = self._jobs.pop(model_id, None)
        if jobs is not None:
            jobs.close()

    def close(self) -> None:
        for jobs in list(self._jobs.values()):
            jobs.close()

    # -- models --------------------------------------------------------------------------------

    def capabilities(self, model_id: str, kind: str) -> tuple[str, ...]:
        """What a model can do, as far as is known before it is loaded."""
        model = self._whisper.get(model_id)
        return (kind, "translation") if model is not None and model.is_multilingual else (kind,)

    def voices(self, infos: Sequence[ModelInfo]) -> tuple[VoiceInfo, ...]:
        """:param infos: of the voices that there are."""
        names = self._config.tts.names
        first = infos[0].id if infos else None
        found = []
        for info in infos:
            voice = self._voices.get(info.id)
            found.append(
                VoiceInfo(
                    id=info.id,
                    language=self._language(info) or "",
                    quality=voice.quality if voice else "",
                    sample_rate=voice.sample_rate_hz if voice else 0,
                    speakers=voice.speakers if voice else (),
                    names=(
                        *info.aliases,
                        *(name for name, target in names.items() if (target or first) == info.id),
                    ),
                    state=info.state,
                )
            )
        return tuple(found)

    def _language(self, info: ModelInfo) -> str | None:
        voice = self._voices.get(info.id)
        if voice is not None:
            return voice.language
        return info.languages[0].replace("_", "-") if info.languages else None

    def _language_family(self, info: ModelInfo) -> str | None:
        language = self._language(info)
        if language is None:
            return None
        return language_code(language) or language.split("-")[0]

    # -- requests --------------------------------------------------------------------------------

    def transcribe(self, request: TranscriptionRequest, on_done: OnDone) -> TranscriptionJob:
        """See the contract. ``on_done``: told of the end of what was accepted, and why."""
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
            counts.add(audio_s=transcription.duration_s)
            on_done(job, error)

        def work() -> Iterator[TranscribedSegment]:
            nonlocal started_s
            started_s = time.monotonic()
            try:
                yield from transcription.segments()
            finally:
                counts.add(busy_s=time.monotonic() - started_s)

        self._on_start(job)
        try:
            self._jobs[request.model_id].submit(job, work, done)
        except FerrumError as error:
            on_done(job, error)
            raise
        counts.add(requests=1)
        return job

    def detector(self) -> SpeechDetector:
        from ferrum_local.stt.voice_activity import VoiceActivity

        return VoiceActivity()

    def transcribe_live(
        self, request: LiveTranscriptRequest, on_close: Callable[[], None]
    ) -> LiveTranscriptionJob:
        """See the contract. ``on_close``: called when the job is closed."""
        from ferrum_local.stt.live import LiveTranscript

        model = self._whisper.get(request.model_id)
        if model is None:
            raise self._not_ready(request.model_id)
        counts = self._counts[request.model_id]
        job = LiveTranscriptionJob(
            LiveTranscript(model, request), self._live_turns[request.model_id], counts, on_close
        )
        counts.add(requests=1)
        return job

    def speak(self, request: SpeechRequest, on_done: OnDone) -> SpeechJob:
        """As ``transcribe``."""
        from ferrum_local.tts.synthesis import plan

        voice = self._voice(request)
        utterances = plan(request, voice, max_chars=self._config.tts.max_chars)
        return self._started(request, utterances, on_done)

    def speak_while_written(
        self, request: SpeechRequest, texts: Iterable[str], on_done: OnDone
    ) -> SpeechJob:
        """As ``transcribe``."""
        from ferrum_local.tts.synthesis import plan_while_written

        utterances = plan_while_written(request, self._voice(request), texts)
        return self._started(request, utterances, on_done)

    def _voice(self, request: SpeechRequest) -> Voice:
        voice = self._voices.get(request.model_id)
        if voice is None:
            raise self._not_ready(request.model_id)
        voice.speaker_id(request.speaker)
        return voice

    def _started(
        self, request: SpeechRequest, utterances: Iterable[Utterance], on_done: OnDone
    ) -> SpeechJob:
        turns = self._turns[request.model_id]
        counts = self._counts[request.model_id]
        job = SpeechJob(request, self._voice(request), utterances, turns, counts, on_done)
        counts.add(requests=1)
        self._on_start(job)
        return job

    def resolve_voice(
        self, name: str | None, language: str | None, infos: Sequence[ModelInfo]
    ) -> str:
        """See the contract. ``infos``: the voices that there are, at least one."""
        wanted = self._config.tts.names.get(name, name) if name else None
        if not wanted or wanted == "default":
            return self._voice_for(language, infos)
        for info in infos:
            if wanted == info.id or wanted in info.aliases:
                spoken = self._language_family(info)
                if language is not None and spoken is not None and language != spoken:
                    raise InvalidRequest(
                        f"language: the voice {info.id} speaks {self._language(info)}, "
                        f"not {language}",
                        param="language",
                    )
                return info.id
        known = [*(info.id for info in infos), *self._config.tts.names]
        raise InvalidRequest(
            f"voice: there is no {(name or '')[:60]!r}; known: {', '.join(known)}",
            param="voice",
            code="voice_not_found",
        )

    def _voice_for(self, language: str | None, infos: Sequence[ModelInfo]) -> str:
        """The first voice that speaks ``language``, or the first of all."""
        for info in infos:
            if language is None or self._language_family(info) == language:
                return info.id
        spoken = ", ".join(sorted({self._language(info) or info.id for info in infos}))
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
        for model_id, counts in list(self._counts.items()):
            is_whisper = model_id in self._whisper
            queue = self._jobs.get(model_id) or self._turns.get(model_id)
            if queue is not None:  # else it is not loaded now
                found.append(
                    SpeechMetrics(
                        model_id=model_id,
                        kind="transcription" if is_whisper else "speech",
                        running=queue.n_running,
                        waiting=queue.n_waiting,
                        requests_total=counts.requests,
                        audio_seconds_total=counts.audio_s,
                        busy_seconds_total=counts.busy_s,
                        load_time_s=counts.load_time_s,
                    )
                )
        return tuple(found)

    def _not_ready(self, model_id: str) -> FerrumError:
        return Unavailable(
            f"{model_id} is not loaded.", retry_after_s=_LOADING_RETRY_S, code="loading"
        )


def check_audio(file: BinaryIO, max_duration_s: float) -> None:
    """Find out what can be wrong with a recording before it waits for a worker.

    :raises InvalidAudio: nothing of it can be decoded. AudioTooLong: by what it says itself.
    """
    from ferrum_local.audio.decode import checked_duration_s

    if (checked_duration_s(file, sample_rate_hz=WHISPER_RATE_HZ) or 0.0) > max_duration_s:
        raise AudioTooLong(max_duration_s)
