"""``LocalEngine``: the engine that the server runs, over runtimes in this process."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ferrum_local.audio_types import (
    AudioConfig,
    LiveTranscriptRequest,
    SpeechRequest,
    TranscriptionRequest,
    VoiceInfo,
)
from ferrum_local.deadlines import time_left_s
from ferrum_local.engine import seed_speech
from ferrum_local.engine.abilities import able_models
from ferrum_local.engine.activity import ActivityLog
from ferrum_local.engine.assembly import ResponseAssembler
from ferrum_local.engine.contracts import (
    EngineMetrics,
    EngineStatus,
    InferenceStream,
    ModelInfo,
    ModelLease,
    RequestObserver,
    SpeechDetector,
)
from ferrum_local.engine.jobs import Running
from ferrum_local.engine.live_speech import LiveTranscriptionJob
from ferrum_local.engine.loading import released_on_error
from ferrum_local.engine.models import EngineModels
from ferrum_local.engine.runtimes import Runtimes
from ferrum_local.engine.speech_jobs import SpeechJob, TranscriptionJob
from ferrum_local.errors import Cancelled, FerrumError, Unavailable
from ferrum_local.types import (
    ChatPrompt,
    EmbeddingRequest,
    EmbeddingResponse,
    ImageInput,
    InferenceRequest,
    InferenceResponse,
    LibraryOptions,
    LlmOptions,
    ModelSpec,
    Prompt,
    RerankRequest,
    RerankResponse,
    TokenIds,
)

if TYPE_CHECKING:
    from ferrum_local.engine.embedding import EmbeddingBackend
    from ferrum_local.llm.runtime import LlmRuntime

_ABANDONED_POLL_S = 0.1  # how often an unstreamed request looks whether its client left


class LocalEngine:
    """The facade over all runtimes; see :class:`ferrum_local.engine.contracts.Engine`.

    The constructor is cheap; ``load`` does the work.

    :param models: loaded by ``load``.
    :param any_model_name: answer with the first model whatever name a client sends.
    :param audio: the Whisper models and voices, loaded as well; None: there are none.
    :param library: models that are loaded when they are first asked for; None: there are none.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        options: LlmOptions | None = None,
        *,
        any_model_name: bool = False,
        audio: AudioConfig | None = None,
        library: LibraryOptions | None = None,
    ) -> None:
        audio = audio or AudioConfig()
        self._runtimes = Runtimes(
            options or LlmOptions(), audio, on_start=self._remember, on_done=self._forget
        )
        self._models = EngineModels(
            models, audio, library or LibraryOptions(), self._runtimes,
            any_model_name=any_model_name,
        )  # fmt: skip
        self._active: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._observers: tuple[RequestObserver, ...] = ()
        self._on_loading: Callable[[str, int], None] | None = None
        self._activity = ActivityLog()

    # -- life ------------------------------------------------------------------------------

    def import_for_load(self) -> bool:
        return self._models.import_for_load()

    def load(self) -> None:
        self._models.load(self._on_loading)

    def watch_loading(self, on_progress: Callable[[str, int], None]) -> None:
        self._on_loading = on_progress

    def start_draining(self) -> None:
        self._models.start_draining()

    def close(self, *, grace_s: float = 0.0) -> None:
        """Let running requests end for ``grace_s`` seconds, end the rest, free the models."""
        self.start_draining()
        deadline = time.monotonic() + grace_s
        with self._lock:
            while self._active and (left_s := deadline - time.monotonic()) > 0:
                self._idle.wait(left_s)
            running = list(self._active.values())
        self._models.close()
        self._runtimes.close(
            Unavailable(
                "The server is shutting down; the answer is not complete.",
                retry_after_s=5,
                code="draining",
            )
        )
        for request in running:
            request.cancel()

    def add_observer(self, observer: RequestObserver) -> None:
        self._observers = (*self._observers, observer)

    # -- models ----------------------------------------------------------------------------

    def resolve_model(self, name: str | None, kind: str | None = "chat") -> ModelInfo:
        return self._models.resolve(name, kind)

    def known_models(self) -> tuple[ModelInfo, ...]:
        return self._models.infos(fresh=True)

    def lease_model(self, model_id: str, *, keep_alive_s: float | None = None) -> ModelLease:
        return self._models.lease(model_id, keep_alive_s)

    def unload_model(self, model_id: str) -> ModelInfo:
        return self._models.unload(model_id)

    # -- generation --------------------------------------------------------------------------

    def infer_stream(self, request: InferenceRequest) -> InferenceStream:
        return self._start(request, None)

    def _start(
        self, request: InferenceRequest, is_abandoned: Callable[[], bool] | None
    ) -> InferenceStream:
        model_id, lease = self._models.leased(
            request.model_id, "chat", deadline_s=time_left_s(request), is_abandoned=is_abandoned
        )
        with released_on_error(lease):
            generation = self._runtimes.llms[model_id].start(
                msgspec.structs.replace(request, model_id=model_id),
                observers=self._observers,
                on_done=self._ends(lease),
            )
        self._remember(generation)
        return generation

    def _ends(self, lease: ModelLease) -> Callable[[Running, FerrumError | None], None]:
        """What the end of a request that holds ``lease`` calls."""

        def on_done(request: Running, error: FerrumError | None) -> None:
            self._forget(request, error)
            lease.release()

        return on_done

    @contextlib.contextmanager
    def _llm(self, name: str | None) -> Iterator[LlmRuntime]:
        model_id, lease = self._models.leased(name, "chat")
        with lease:
            yield self._runtimes.llms[model_id]

    def validate(self, request: InferenceRequest) -> None:
        with self._llm(request.model_id) as runtime:
            runtime.validate(request)

    def _remember(self, request: Running) -> None:
        # Only what was accepted counts; refusals are in the HTTP layer's own numbers.
        self._activity.started()
        with self._lock:
            self._active[request.request_id] = request

    def _forget(self, request: Running, error: FerrumError | None) -> None:
        self._activity.finished(error)
        with self._lock:
            self._active.pop(request.request_id, None)
            if not self._active:
                self._idle.notify_all()

    def infer(
        self,
        request: InferenceRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> InferenceResponse:
        assembler = ResponseAssembler(request.sampling_params.n)
        next_look = time.monotonic() + _ABANDONED_POLL_S
        with self._start(request, is_abandoned) as stream:
            while True:
                if is_abandoned is not None and time.monotonic() >= next_look:
                    if is_abandoned():
                        raise Cancelled("The client left before the answer was complete.")
                    next_look = time.monotonic() + _ABANDONED_POLL_S
                try:
                    chunk = stream.poll(_ABANDONED_POLL_S)
                except StopIteration:
                    break
                if chunk is not None:
                    assembler.add(chunk)
        return assembler.response(request.id, stream)

    def cancel(self, request_id: str) -> bool:
        with self._lock:
            wanted = [r for r in self._active.values() if request_id in r.names]
        for request in wanted:
            request.cancel()
        return bool(wanted)

    def check(self) -> None:
        for runtime in list(self._runtimes.llms.values()):
            runtime.runner.check()

    # -- tokens and templates ------------------------------------------------------------------

    def apply_template(self, prompt: ChatPrompt, model: str | None = None) -> str:
        with self._llm(model) as runtime:
            return runtime.render(prompt)

    def count_tokens(self, prompt: Prompt, model: str | None = None) -> int:
        with self._llm(model) as runtime:
            return runtime.count_tokens(prompt)

    def tokenize(
        self, text: str, model: str | None = None, *, add_special: bool, parse_special: bool
    ) -> TokenIds:
        with self._llm(model) as runtime:
            return runtime.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, tokens: TokenIds, model: str | None = None) -> tuple[bytes, ...]:
        with self._llm(model) as runtime:
            return runtime.token_bytes(tokens)

    # -- other kinds: found by kind in the same table of models --------------------------------

    def embed(
        self, request: EmbeddingRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> EmbeddingResponse:
        with self._embedder(request, "embedding", is_abandoned) as embedder:
            return self._runtimes.embeddings.embed(embedder, request, is_abandoned)

    @contextlib.contextmanager
    def _embedder(
        self,
        request: EmbeddingRequest | RerankRequest,
        kind: str,
        is_abandoned: Callable[[], bool] | None,
    ) -> Iterator[EmbeddingBackend]:
        """The request's model, ready and held."""
        model_id, lease = self._models.leased(
            request.model_id, kind, deadline_s=time_left_s(request), is_abandoned=is_abandoned
        )
        with lease:
            yield self._runtimes.embeddings[model_id]

    def count_embedding_tokens(
        self, texts: Sequence[str], model: str | None = None
    ) -> Sequence[int]:
        """What each text is to a model that makes vectors, the markers around it included."""
        model_id, lease = self._models.leased(model, "embedding")
        with lease:
            return self._runtimes.embeddings[model_id].count_tokens(texts)

    def rerank(
        self, request: RerankRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> RerankResponse:
        with self._embedder(request, "rerank", is_abandoned) as embedder:
            return self._runtimes.embeddings.rerank(embedder, request, is_abandoned)

    def embed_text(self, text: str, model: str | None = None) -> Sequence[float]:
        return self._embed_one(text, model)

    def embed_image(self, image: bytes, model: str | None = None) -> Sequence[float]:
        return self._embed_one(ImageInput(image), model)

    def _embed_one(self, item: str | ImageInput, model: str | None) -> Sequence[float]:
        request = EmbeddingRequest(
            id=f"embd-{uuid.uuid4().hex}", model_id=model or "", inputs=(item,)
        )
        return self.embed(request).vectors[0]

    # -- speech ----------------------------------------------------------------------------------

    def transcribe(self, request: TranscriptionRequest) -> TranscriptionJob:
        model_id, lease = self._models.leased(request.model_id, "transcription")
        with released_on_error(lease):
            return self._runtimes.speech.transcribe(
                msgspec.structs.replace(request, model_id=model_id), self._ends(lease)
            )

    def speech_detector(self) -> SpeechDetector:
        return self._runtimes.speech.detector()

    def transcribe_live(
        self,
        request: LiveTranscriptRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> LiveTranscriptionJob:
        model_id, lease = self._models.leased(
            request.model_id, "transcription", is_abandoned=is_abandoned
        )
        with released_on_error(lease):
            return self._runtimes.speech.transcribe_live(
                msgspec.structs.replace(request, model_id=model_id), lease.release
            )

    def speak(self, request: SpeechRequest) -> SpeechJob:
        voice, lease = self._voice(request)
        with released_on_error(lease):
            return self._runtimes.speech.speak(voice, self._ends(lease))

    def speak_while_written(self, request: SpeechRequest, texts: Iterable[str]) -> SpeechJob:
        voice, lease = self._voice(request)
        with released_on_error(lease):
            return self._runtimes.speech.speak_while_written(voice, texts, self._ends(lease))

    def _voice(self, request: SpeechRequest) -> tuple[SpeechRequest, ModelLease]:
        """The request with its voice's id, and the voice ready and held."""
        model_id, lease = self._models.leased(self.resolve_voice(request.model_id), "speech")
        return msgspec.structs.replace(request, model_id=model_id), lease

    def voices(self) -> tuple[VoiceInfo, ...]:
        return self._runtimes.speech.voices(able_models(self._models.infos(), "speech"))

    def resolve_voice(self, name: str | None, language: str | None = None) -> str:
        self.resolve_model(None, "speech")
        infos = able_models(self._models.infos(), "speech")
        return self._runtimes.speech.resolve_voice(name, language, infos)

    def transcribe_bytes(self, data: bytes, language: str | None = None) -> str:
        return seed_speech.transcribe_bytes(self, data, language)

    def synthesize_speech(
        self, text: str, language: str | None = None, chunk_frames: int = 10
    ) -> Iterator[Sequence[float]]:
        return seed_speech.synthesize_speech(self, text, language, chunk_frames)

    def tts_sample_rate(self) -> int:
        model_id, lease = self._models.leased(None, "speech")
        with lease:
            return self._runtimes.speech.sample_rate_hz(model_id)

    # -- status --------------------------------------------------------------------------------

    def status(self) -> EngineStatus:
        infos = self._models.infos()
        queued = self._runtimes.n_queued
        return EngineStatus(
            state=self._models.state,
            loaded_models=tuple(info.id for info in infos if info.state == "ready"),
            active_requests=max(0, len(self._active) - queued),
            queued_requests=queued,
            models=infos,
        )

    def metrics(self) -> EngineMetrics:
        totals = self._activity.totals()
        return EngineMetrics(
            total_requests=totals.started,
            successful_requests=totals.succeeded,
            failed_requests=totals.failed,
            cancelled_requests=totals.cancelled,
            throughput_rps=totals.throughput_rps,
            models=self._runtimes.metrics(),
            speech=self._runtimes.speech.metrics(),
        )
