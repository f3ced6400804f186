"""``LocalEngine``: the engine that the server runs, over runtimes in this process."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ferrum_local.audio_types import (
    AudioConfig,
    LiveTranscriptRequest,
    SpeechRequest,
    TranscriptionRequest,
    VoiceInfo,
)
from ferrum_local.engine import seed_speech
from ferrum_local.engine.abilities import able_models, refuse_chat_model
from ferrum_local.engine.activity import ActivityLog
from ferrum_local.engine.assembly import ResponseAssembler
from ferrum_local.engine.contracts import (
    EngineMetrics,
    EngineStatus,
    InferenceStream,
    ModelInfo,
    ModelMetrics,
    RequestObserver,
    SpeechDetector,
)
from ferrum_local.engine.embedding import EmbeddingModels
from ferrum_local.engine.jobs import Running
from ferrum_local.engine.live_speech import LiveTranscriptionJob
from ferrum_local.engine.loading import made_on_own_thread
from ferrum_local.engine.speech import SpeechRuntimes
from ferrum_local.engine.speech_jobs import SpeechJob, TranscriptionJob
from ferrum_local.errors import (
    Cancelled,
    FerrumError,
    ModelLoadError,
    ModelNotFound,
    Unavailable,
)
from ferrum_local.types import (
    ChatPrompt,
    EmbeddingRequest,
    EmbeddingResponse,
    ImageInput,
    InferenceRequest,
    InferenceResponse,
    LlmOptions,
    ModelSpec,
    Prompt,
    RerankRequest,
    RerankResponse,
    TokenIds,
)

if TYPE_CHECKING:
    from ferrum_local.llm.runtime import LlmRuntime

logger = logging.getLogger(__name__)

_ABANDONED_POLL_S = 0.1  # how often an unstreamed request looks whether its client left
_LOADING_RETRY_S = 2.0
_CHAT_CAPABILITIES = ("chat", "completion")
_FLAG_FOR_KIND = {
    "chat": "--model",
    "embedding": "--embedding-model",
    "image-embedding": "--image-embedding-model",
    "rerank": "--embedding-model",
    "transcription": "--whisper-model",
    "speech": "--voice",
}


class LocalEngine:
    """The facade over all runtimes; see :class:`ferrum_local.engine.contracts.Engine`.

    The constructor is cheap; ``load`` does the work.

    :param any_model_name: answer with the first model whatever name a client sends.
    :param audio: the Whisper models and voices; None: there are none.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        options: LlmOptions | None = None,
        *,
        any_model_name: bool = False,
        audio: AudioConfig | None = None,
    ) -> None:
        self._specs = tuple(models)
        self._options = options or LlmOptions()
        self._any_model_name = any_model_name
        self._runtimes: dict[str, LlmRuntime] = {}
        self._errors: dict[str, str] = {}
        self._active: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._observers: tuple[RequestObserver, ...] = ()
        self._on_loading: Callable[[str, int], None] | None = None
        self._activity = ActivityLog()
        self._embeddings = EmbeddingModels(
            self._options, on_start=self._remember, on_done=self._forget
        )
        self._loaded = False
        self._draining = False
        self._closed = False
        self._speech = SpeechRuntimes(
            audio or AudioConfig(), on_start=self._remember, on_done=self._forget
        )

    # -- life ------------------------------------------------------------------------------

    def load(self) -> None:
        """Load every model, in order; see the contract."""
        if self._specs:
            self._load_llms()
        self._speech.load()
        self._loaded = True

    def _load_llms(self) -> None:
        from ferrum_local.llm.devices import backend_summary
        from ferrum_local.llm.runtime import LlmRuntime

        logger.info("llama.cpp on %s", backend_summary())
        for spec in self._specs:
            try:
                if spec.kind in ("embedding", "image-embedding"):
                    self._embeddings.load(spec)
                    continue
                on_progress = self._progress_of(spec)
                runtime = made_on_own_thread(
                    functools.partial(LlmRuntime, spec, self._options, on_progress=on_progress)
                )
            except FerrumError as error:
                self._errors[spec.id] = error.message
                raise
            except Exception as error:  # say which model, and never stay at "loading"
                self._errors[spec.id] = f"{spec.path}: {error}"
                raise ModelLoadError(self._errors[spec.id]) from error
            with self._lock:
                closed = self._closed
                if not closed:
                    self._runtimes[spec.id] = runtime
            if closed:
                runtime.close()
                raise ModelLoadError("The server was stopped while a model was loading.")
            if self._options.embeddings_from_chat:
                self._embeddings.load(spec, shared=runtime.model)
            if self._on_loading is not None:
                self._on_loading(spec.id, 100)

    def watch_loading(self, on_progress: Callable[[str, int], None]) -> None:
        self._on_loading = on_progress

    def _progress_of(self, spec: ModelSpec) -> Callable[[float], None] | None:
        """Weights count up to 99: after them come the context and a first step."""
        on_loading = self._on_loading
        if on_loading is None:
            return None
        on_loading(spec.id, 0)
        return lambda fraction: on_loading(spec.id, min(99, int(fraction * 100)))

    def start_draining(self) -> None:
        self._draining = True

    def close(self, *, grace_s: float = 0.0) -> None:
        """Let running requests end for ``grace_s`` seconds, end the rest, free the models."""
        self.start_draining()
        deadline = time.monotonic() + grace_s
        with self._lock:
            while self._active and (left_s := deadline - time.monotonic()) > 0:
                self._idle.wait(left_s)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            runtimes = list(self._runtimes.values())
            running = list(self._active.values())
        error = Unavailable(
            "The server is shutting down; the answer is not complete.",
            retry_after_s=5,
            code="draining",
        )
        self._embeddings.close(error)  # first: they may share a chat model's weights
        for runtime in runtimes:
            runtime.close(error)
        for request in running:
            request.cancel()
        self._speech.close()

    def add_observer(self, observer: RequestObserver) -> None:
        self._observers = (*self._observers, observer)

    # -- models ----------------------------------------------------------------------------

    def resolve_model(self, name: str | None, kind: str = "chat") -> ModelInfo:
        infos = self._model_infos()
        refuse_chat_model(infos, name, kind)
        candidates = able_models(infos, kind)
        if not candidates:
            flag = _FLAG_FOR_KIND.get(kind)
            hint = f"; {flag} loads one" if flag else ""
            raise ModelNotFound(f"No {kind} model is loaded{hint}.")
        if not name or name == "default":
            return candidates[0]
        for info in candidates:
            if name == info.id or name in info.aliases:
                return info
        if self._any_model_name:
            return candidates[0]
        known = [info.id for info in candidates]
        names = ", ".join(_with_aliases(info) for info in candidates)
        raise ModelNotFound(
            f"The model {name!r} is not loaded. Known: {names}, default.", known_ids=known
        )

    def _model_infos(self) -> tuple[ModelInfo, ...]:
        return (*(self._model_info(spec) for spec in self._specs), *self._speech.infos())

    def _model_info(self, spec: ModelSpec) -> ModelInfo:
        embedder = self._embeddings.get(spec.id)
        runtime = self._runtimes.get(spec.id) if spec.kind == "chat" else embedder
        error = self._errors.get(spec.id)
        try:
            file = os.stat(spec.path)
            created, size_bytes = int(file.st_mtime), file.st_size
        except OSError:  # deleted since it was loaded: the model itself still answers
            created, size_bytes = 0, 0
        capabilities: tuple[str, ...] = _CHAT_CAPABILITIES if spec.kind == "chat" else ()
        if embedder is not None:
            capabilities += embedder.capabilities
        elif spec.kind != "chat":  # not loaded yet
            capabilities += ("embeddings",)
        return ModelInfo(
            id=spec.id,
            kind="chat" if spec.kind == "chat" else "embedding",
            aliases=spec.aliases,
            path=spec.path,
            state="failed" if error else "ready" if runtime else "loading",
            created=created,
            size_bytes=size_bytes,
            context_length=runtime.n_ctx if runtime else 0,
            capabilities=capabilities,
            error=error,
        )

    # -- generation --------------------------------------------------------------------------

    def infer_stream(self, request: InferenceRequest) -> InferenceStream:
        info, runtime = self._runtime_for(request.model_id)
        generation = runtime.start(
            msgspec.structs.replace(request, model_id=info.id),
            observers=self._observers,
            on_done=self._forget,
        )
        self._remember(generation)
        return generation

    def _runtime_for(self, model: str | None) -> tuple[ModelInfo, LlmRuntime]:
        info = self._resolve_ready(model, "chat")
        return info, _loaded(self._runtimes.get(info.id), info)

    def _resolve_ready(self, name: str | None, kind: str) -> ModelInfo:
        """As ``resolve_model``, for a request that is to run now."""
        self._refuse_while_draining()
        return self.resolve_model(name, kind)

    def _refuse_while_draining(self) -> None:
        if self._draining:
            raise Unavailable("The server is shutting down.", retry_after_s=5, code="draining")

    def validate(self, request: InferenceRequest) -> None:
        _, runtime = self._runtime_for(request.model_id)
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
        with self.infer_stream(request) as stream:
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
        for runtime in list(self._runtimes.values()):
            runtime.runner.check()

    # -- tokens and templates ------------------------------------------------------------------

    def apply_template(self, prompt: ChatPrompt, model: str | None = None) -> str:
        _, runtime = self._runtime_for(model)
        return runtime.render(prompt)

    def count_tokens(self, prompt: Prompt, model: str | None = None) -> int:
        _, runtime = self._runtime_for(model)
        return runtime.count_tokens(prompt)

    def tokenize(
        self, text: str, model: str | None = None, *, add_special: bool, parse_special: bool
    ) -> TokenIds:
        _, runtime = self._runtime_for(model)
        return runtime.tokenize(text, add_special=add_special, parse_special=parse_special)

    def token_bytes(self, tokens: TokenIds, model: str | None = None) -> tuple[bytes, ...]:
        _, runtime = self._runtime_for(model)
        return runtime.token_bytes(tokens)

    # -- other kinds: found by kind in the same table of models --------------------------------

    def embed(
        self, request: EmbeddingRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> EmbeddingResponse:
        info = self._resolve_ready(request.model_id, "embedding")
        runtime = _loaded(self._embeddings.get(info.id), info)
        return self._embeddings.embed(runtime, request, is_abandoned)

    def count_embedding_tokens(
        self, texts: Sequence[str], model: str | None = None
    ) -> Sequence[int]:
        """What each text is to a model that makes vectors, the markers around it included."""
        info = self._resolve_ready(model, "embedding")
        return _loaded(self._embeddings.get(info.id), info).count_tokens(texts)

    def rerank(
        self, request: RerankRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> RerankResponse:
        info = self._resolve_ready(request.model_id, "rerank")
        runtime = _loaded(self._embeddings.get(info.id), info)
        return self._embeddings.rerank(runtime, request, is_abandoned)

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
        self._refuse_while_draining()
        info = self.resolve_model(request.model_id, "transcription")
        return self._speech.transcribe(msgspec.structs.replace(request, model_id=info.id))

    def speech_detector(self) -> SpeechDetector:
        return self._speech.detector()

    def transcribe_live(self, request: LiveTranscriptRequest) -> LiveTranscriptionJob:
        info = self._resolve_ready(request.model_id, "transcription")
        return self._speech.transcribe_live(msgspec.structs.replace(request, model_id=info.id))

    def speak(self, request: SpeechRequest) -> SpeechJob:
        return self._speech.speak(self._with_voice(request))

    def speak_while_written(self, request: SpeechRequest, texts: Iterable[str]) -> SpeechJob:
        return self._speech.speak_while_written(self._with_voice(request), texts)

    def _with_voice(self, request: SpeechRequest) -> SpeechRequest:
        self._refuse_while_draining()
        return msgspec.structs.replace(request, model_id=self.resolve_voice(request.model_id))

    def voices(self) -> tuple[VoiceInfo, ...]:
        return self._speech.voices()

    def resolve_voice(self, name: str | None, language: str | None = None) -> str:
        default = self.resolve_model(None, "speech")
        return self._speech.resolve_voice(name, language, default=default.id)

    def transcribe_bytes(self, data: bytes, language: str | None = None) -> str:
        return seed_speech.transcribe_bytes(self, data, language)

    def synthesize_speech(
        self, text: str, language: str | None = None, chunk_frames: int = 10
    ) -> Iterator[Sequence[float]]:
        return seed_speech.synthesize_speech(self, text, language, chunk_frames)

    def tts_sample_rate(self) -> int:
        return self._speech.sample_rate_hz(self.resolve_model(None, "speech").id)

    # -- status --------------------------------------------------------------------------------

    def status(self) -> EngineStatus:
        infos = self._model_infos()
        if self._draining:
            state = "draining"
        elif self._errors:
            state = "failed"
        else:
            state = "ready" if self._loaded else "loading"
        queued = sum(r.runner.n_queued for r in self._runtimes.values())
        queued += self._embeddings.n_queued
        return EngineStatus(
            state=state,
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
            models=(
                *(_model_metrics(runtime) for runtime in list(self._runtimes.values())),
                *self._embeddings.metrics(),
            ),
            speech=self._speech.metrics(),
        )


_Runtime = TypeVar("_Runtime")


def _loaded(runtime: _Runtime | None, info: ModelInfo) -> _Runtime:
    """:raises FerrumError: the model is not there, or not yet."""
    if runtime is not None:
        return runtime
    if info.error is not None:
        raise ModelLoadError(info.error)
    raise Unavailable(
        f"{info.id} is still loading.", retry_after_s=_LOADING_RETRY_S, code="loading"
    )


def _with_aliases(info: ModelInfo) -> str:
    return f"{info.id} (also {', '.join(info.aliases)})" if info.aliases else info.id


def _model_metrics(runtime: LlmRuntime) -> ModelMetrics:
    counters = runtime.runner.counters
    return ModelMetrics(
        model_id=runtime.spec.id,
        running_sequences=runtime.runner.n_running,
        waiting_requests=runtime.runner.n_queued,
        slots=runtime.n_slots,
        kv_cells_used=runtime.n_cells_used,
        kv_cells_total=runtime.n_slots * runtime.n_ctx,
        prompt_tokens_total=counters.prompt_tokens,
        prompt_tokens_evaluated_total=counters.prompt_tokens_evaluated,
        prefix_hits_total=counters.prefix_hits,
        prefix_tokens_saved_total=counters.prefix_tokens_saved,
        generated_tokens_total=counters.generated_tokens,
        steps_total=counters.steps,
        draft_tokens_total=counters.draft_tokens,
        draft_tokens_accepted_total=counters.draft_tokens_accepted,
        preempted_total=counters.preempted,
        cancelled_total=counters.cancelled,
        load_time_s=runtime.load_time_s,
    )
