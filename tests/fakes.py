"""A scripted engine for fault injection, and a real HTTP server around any app.

The engine keeps the promises of ``ferrum_local.engine.contracts`` and nothing more: it plays a
script, so that a test can raise, stall or count at an exact place.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from flask import Flask
from werkzeug.serving import make_server

from ferrum_local.audio_types import (
    LiveTranscriptRequest,
    SpeechRequest,
    TranscriptionRequest,
    VoiceInfo,
)
from ferrum_local.engine.assembly import ResponseAssembler
from ferrum_local.engine.contracts import (
    EngineMetrics,
    EngineStatus,
    LiveTranscription,
    ModelInfo,
    ModelMetrics,
    RequestObserver,
    SpeechDetector,
    SpeechStream,
)
from ferrum_local.errors import Cancelled, ModelNotFound, Unavailable
from ferrum_local.http.state import state
from ferrum_local.server.threaded import ClosingHandler, closed_once
from ferrum_local.types import (
    ChatPrompt,
    EmbeddingRequest,
    EmbeddingResponse,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Prompt,
    RerankRequest,
    RerankResponse,
    StreamChunk,
    Timings,
    TokenIds,
    TokenLogprob,
    Usage,
)

# A chunk is delivered, an exception raised, an event waited for.
Step: TypeAlias = StreamChunk | Exception | threading.Event
POLL_S = 0.01


def chunk(text: str, *, index: int = 0, finish: FinishReason | None = None) -> StreamChunk:
    return StreamChunk(index=index, text=text, token_ids=(1,), finish_reason=finish)


HELLO: tuple[Step, ...] = (chunk("Hel"), chunk("lo"), chunk("", finish=FinishReason.STOP))


def model_info(model_id: str = "tiny", *, kind: str = "chat", state: str = "ready") -> ModelInfo:
    return ModelInfo(
        id=model_id,
        kind=kind,
        aliases=("small",),
        path=f"/models/{model_id}.gguf",
        state=state,
        created=1_700_000_000,
        size_bytes=1234,
        context_length=2048,
        capabilities=("chat", "completion"),
    )


class ScriptedStream:
    """Plays the steps of one request."""

    def __init__(self, engine: ScriptedEngine, request: InferenceRequest) -> None:
        self.request_id = request.id
        self.model_id = engine.models[0].id
        self.closed = threading.Event()
        self._engine = engine
        self._steps = list(engine.script)
        self._n_tokens = 0
        self.prompt_token_ids: TokenIds = (1, 2, 3)
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def poll(self, timeout_s: float) -> StreamChunk | None:
        if not self._steps:
            self._engine.finish(self)
            raise StopIteration
        step = self._steps[0]
        if isinstance(step, threading.Event):
            if not self._wait_for(step, timeout_s):
                return None
            self._steps.pop(0)
            return self.poll(timeout_s)
        if self.closed.is_set():
            raise Cancelled("The request was cancelled.")
        self._steps.pop(0)
        if isinstance(step, Exception):
            self._steps.clear()
            self._engine.finish(self)
            raise step
        self._count(step)
        return step

    def _wait_for(self, event: threading.Event, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not event.wait(POLL_S):
            if self.closed.is_set():
                raise Cancelled("The request was cancelled.")
            if time.monotonic() > deadline_s:
                return False
        return True

    def _count(self, step: StreamChunk) -> None:
        for observer in self._engine.observers:
            if self._n_tokens == 0:
                observer.on_queue_wait(self.model_id, 0.001)
                observer.on_first_token(self.model_id, 0.05)
            else:
                observer.on_token_gap(self.model_id, 0.01)
        self._n_tokens += len(step.token_ids)

    def __iter__(self) -> Iterator[StreamChunk]:
        return self

    def __next__(self) -> StreamChunk:
        while True:
            step = self.poll(1.0)
            if step is not None:
                return step

    def close(self) -> None:
        self.closed.set()
        self._engine.finish(self)

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=3, completion_tokens=self._n_tokens, cached_tokens=1)

    @property
    def timings(self) -> Timings:
        return Timings(
            queue_ms=1.0,
            prompt_n=2,
            prompt_ms=4.0,
            predicted_n=self._n_tokens,
            predicted_ms=10.0,
            ttft_ms=50.0 if self._n_tokens else None,
        )


class ReadyLease:
    """Of a model that is always there."""

    def wait(self, timeout_s: float) -> bool:
        return True

    def release(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> ReadyLease:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class ScriptedEngine:
    """Every request plays ``script``. ``streams`` keeps all that were started."""

    def __init__(
        self,
        script: Sequence[Step] = HELLO,
        *,
        state: str = "ready",
        models: Sequence[ModelInfo] = (model_info(),),
    ) -> None:
        self.script = tuple(script)
        self.state = state
        self.models = tuple(models)
        self.observers: list[RequestObserver] = []
        self.on_loading: Callable[[str, int], None] = lambda _model, _percent: None
        self.streams: list[ScriptedStream] = []
        self.requests: list[InferenceRequest] = []
        self._running: set[str] = set()
        self._n_finished = 0

    def watch_loading(self, on_progress: Callable[[str, int], None]) -> None:
        self.on_loading = on_progress

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        if self.state != "ready":
            raise Unavailable(f"The server is {self.state}.", retry_after_s=2, code=self.state)
        self.resolve_model(request.model_id)
        stream = ScriptedStream(self, request)
        self.requests.append(request)
        self.streams.append(stream)
        self._running.add(request.id)
        return stream

    def infer(
        self, request: InferenceRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> InferenceResponse:
        assembler = ResponseAssembler(request.sampling_params.n)
        with self.infer_stream(request) as stream:
            while True:
                if is_abandoned is not None and is_abandoned():
                    raise Cancelled("The client left.")
                try:
                    step = stream.poll(POLL_S)
                except StopIteration:
                    break
                if step is not None:
                    assembler.add(step)
            return assembler.response(request.id, stream)

    def finish(self, stream: ScriptedStream) -> None:
        if stream.request_id in self._running:
            self._running.remove(stream.request_id)
            self._n_finished += 1

    def cancel(self, request_id: str) -> bool:
        running = [s for s in self.streams if s.request_id == request_id and not s.closed.is_set()]
        for stream in running:
            stream.close()
        return bool(running)

    def validate(self, request: InferenceRequest) -> None:
        """This engine takes whatever its script says."""
        self.resolve_model(request.model_id)

    def check(self) -> None:
        """Nothing to compare: there is no model behind this engine."""

    def known_models(self) -> tuple[ModelInfo, ...]:
        return self.models

    def lease_model(self, model_id: str, *, keep_alive_s: float | None = None) -> ReadyLease:
        if self.state != "ready":
            raise Unavailable(f"The server is {self.state}.", retry_after_s=2, code=self.state)
        return ReadyLease()

    def unload_model(self, model_id: str) -> ModelInfo:
        return self.resolve_model(model_id, None)

    def resolve_model(self, name: str | None, kind: str | None = "chat") -> ModelInfo:
        of_kind = [model for model in self.models if kind in (None, model.kind)]
        for model in of_kind:
            if not name or name in ("default", model.id, *model.aliases):
                return model
        ids = [model.id for model in of_kind]
        raise ModelNotFound(f"No model {name!r} here. Known: {', '.join(ids)}.", known_ids=ids)

    def apply_template(self, prompt: ChatPrompt, model: str | None = None) -> str:
        self.resolve_model(model)
        return "\n".join(f"{m['role']}: {m['content']}" for m in prompt.messages)

    def count_tokens(self, prompt: Prompt, model: str | None = None) -> int:
        self.resolve_model(model)
        return 3

    def tokenize(
        self, text: str, model: str | None = None, *, add_special: bool, parse_special: bool
    ) -> TokenIds:
        """One token a byte, and 256 for what goes before a text."""
        self.resolve_model(model)
        return (*([256] if add_special else []), *text.encode())

    def token_bytes(self, tokens: TokenIds, model: str | None = None) -> tuple[bytes, ...]:
        self.resolve_model(model)
        return tuple(bytes([token]) if token < 256 else b"" for token in tokens)

    def embed(
        self, request: EmbeddingRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> EmbeddingResponse:
        raise ModelNotFound("No embedding model is loaded.")

    def rerank(
        self, request: RerankRequest, *, is_abandoned: Callable[[], bool] | None = None
    ) -> RerankResponse:
        raise ModelNotFound("No embedding model is loaded.")

    def embed_text(self, text: str, model: str | None = None) -> Sequence[float]:
        raise ModelNotFound("No embedding model is loaded.")

    def embed_image(self, image: bytes, model: str | None = None) -> Sequence[float]:
        raise ModelNotFound("No embedding model is loaded.")

    def transcribe(self, request: TranscriptionRequest) -> NoReturn:
        raise ModelNotFound("No transcription model is loaded.")

    def speech_detector(self) -> SpeechDetector:
        raise ModelNotFound("No transcription model is loaded.")

    def transcribe_live(
        self,
        request: LiveTranscriptRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> LiveTranscription:
        raise ModelNotFound("No transcription model is loaded; --whisper-model loads one.")

    def speak(self, request: SpeechRequest) -> NoReturn:
        raise ModelNotFound("No speech model is loaded.")

    def speak_while_written(self, request: SpeechRequest, texts: Iterable[str]) -> SpeechStream:
        raise ModelNotFound("No speech model is loaded.")

    def voices(self) -> tuple[VoiceInfo, ...]:
        return ()

    def resolve_voice(self, name: str | None, language: str | None = None) -> str:
        raise ModelNotFound("No speech model is loaded.")

    def transcribe_bytes(self, data: bytes, language: str | None = None) -> str:
        raise ModelNotFound("No transcription model is loaded.")

    def synthesize_speech(
        self, text: str, language: str | None = None, chunk_frames: int = 10
    ) -> Iterator[Sequence[float]]:
        raise ModelNotFound("No speech model is loaded.")

    def tts_sample_rate(self) -> int:
        raise ModelNotFound("No speech model is loaded.")

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self.state,
            loaded_models=tuple(model.id for model in self.models),
            active_requests=len(self._running),
            queued_requests=0,
            models=self.models,
        )

    def metrics(self) -> EngineMetrics:
        return EngineMetrics(
            total_requests=len(self.streams),
            successful_requests=self._n_finished,
            failed_requests=0,
            cancelled_requests=0,
            throughput_rps=0.5,
            models=tuple(
                ModelMetrics(
                    model_id=model.id,
                    running_sequences=len(self._running),
                    waiting_requests=0,
                    slots=8,
                    kv_cells_used=10,
                    kv_cells_total=4096,
                    prompt_tokens_total=300,
                    prompt_tokens_evaluated_total=200,
                    prefix_hits_total=1,
                    prefix_tokens_saved_total=100,
                    generated_tokens_total=42,
                    steps_total=40,
                    draft_tokens_total=0,
                    draft_tokens_accepted_total=0,
                    preempted_total=0,
                    moved_total=0,
                    cancelled_total=0,
                    load_time_s=1.5,
                )
                for model in self.models
            ),
        )

    def add_observer(self, observer: RequestObserver) -> None:
        self.observers.append(observer)

    def import_for_load(self) -> bool:
        return False

    def load(self) -> None:
        self.state = "ready"

    def start_draining(self) -> None:
        self.state = "draining"

    def close(self, *, grace_s: float = 0.0) -> None:
        for stream in self.streams:
            stream.close()


@dataclass(frozen=True)
class Address:
    """Where a test server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class _Http11Handler(ClosingHandler):
    protocol_version = "HTTP/1.1"  # so that streams are chunked, as with gunicorn

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass  # the app writes its own access line


@contextmanager
def serving(app: Flask) -> Iterator[Address]:
    """``app`` on a free port of 127.0.0.1, in threads of this process.

    Whatever happened to its clients, every request must come to an end.
    """
    server = make_server(
        "127.0.0.1", 0, closed_once(app), threaded=True, request_handler=_Http11Handler
    )
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", server.server_port)
        try:
            wait_until(lambda: state(app).gate.open == 0, 30)
        except AssertionError:
            faulthandler.dump_traceback()  # where those are that never end
            raise
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return as soon as ``condition`` holds; fail when it never does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "timed out waiting for a condition"
        time.sleep(POLL_S)
