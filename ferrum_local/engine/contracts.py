"""What the engine promises to the layers above it.

``Engine`` has the methods of the seed's ``InferenceEngine``. All of them may be
called from any thread; each blocks only the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from ferrum_local.audio_types import (
    LiveTranscriptRequest,
    SpeechRequest,
    SpokenPart,
    TranscribedSegment,
    TranscriptionFacts,
    TranscriptionRequest,
    VoiceInfo,
)
from ferrum_local.types import (
    ChatPrompt,
    EmbeddingRequest,
    EmbeddingResponse,
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
from ferrum_local.types import RequestObserver as RequestObserver

if TYPE_CHECKING:
    from ferrum_local.audio.decode import Samples


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model as clients see it in ``GET /v1/models``.

    ``state`` is ``unloaded`` (it is loaded when it is asked for), ``loading``, ``ready``,
    ``unloading`` or ``failed``; ``created`` is the file's modification time in whole seconds
    since the epoch. ``progress``: percent loaded so far, while loading. ``expires_in_s``: until
    it is unloaded if it is not asked. ``languages`` are codes, of speech models.
    """

    id: str
    kind: str  # "chat", "embedding", "image-embedding", "rerank", "transcription", "speech"
    aliases: tuple[str, ...]
    path: str
    state: str
    created: int
    size_bytes: int
    context_length: int
    capabilities: tuple[str, ...]
    error: str | None = None
    progress: int | None = None
    expires_in_s: float | None = None
    quantization: str | None = None
    license: str | None = None
    languages: tuple[str, ...] = ()
    lora_scales: tuple[float, ...] = ()  # of the adapters that all its requests use


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State right now. ``state``: ``loading``, ``ready``, ``draining``, ``failed``."""

    state: str
    loaded_models: tuple[str, ...]
    active_requests: int
    queued_requests: int
    models: tuple[ModelInfo, ...]


class ModelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of one model's decode thread."""

    model_id: str
    running_sequences: int
    waiting_requests: int
    slots: int
    kv_cells_used: int
    kv_cells_total: int
    prompt_tokens_total: int  # asked for, cached ones included
    prompt_tokens_evaluated_total: int
    prefix_hits_total: int
    prefix_tokens_saved_total: int
    generated_tokens_total: int
    steps_total: int
    draft_tokens_total: int
    draft_tokens_accepted_total: int
    preempted_total: int
    moved_total: int
    cancelled_total: int
    load_time_s: float


class SpeechMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Of one Whisper model or voice. ``busy_seconds_total`` by ``audio_seconds_total`` is the
    real-time factor."""

    model_id: str
    kind: str
    running: int
    waiting: int
    requests_total: int
    audio_seconds_total: float
    busy_seconds_total: float
    load_time_s: float


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since start. ``throughput_rps``: requests finished in the last minute / 60."""

    total_requests: int
    successful_requests: int
    failed_requests: int
    cancelled_requests: int
    throughput_rps: float
    models: tuple[ModelMetrics, ...]
    speech: tuple[SpeechMetrics, ...] = ()


class InferenceStream(Protocol):
    """One running request. Iterate it, or ``poll`` it when there is something to do between.

    Use it as a context manager or call ``close``: leaving early cancels the work.
    """

    request_id: str
    model_id: str

    def poll(self, timeout_s: float) -> StreamChunk | None:
        """Return the next chunk, or None when ``timeout_s`` passed without one.

        :raises StopIteration: after the last chunk.
        :raises FerrumError: when the request failed; the stream is over then.
        """
        ...

    def __iter__(self) -> Iterator[StreamChunk]: ...

    def __next__(self) -> StreamChunk: ...

    def close(self) -> None:
        """Cancel what is still running. Safe to call twice and from any thread."""
        ...

    def __enter__(self) -> InferenceStream: ...

    def __exit__(self, *exc_info: object) -> None: ...

    @property
    def usage(self) -> Usage:
        """Token counts so far; final once iteration ended."""
        ...

    @property
    def timings(self) -> Timings: ...

    @property
    def prompt_token_ids(self) -> TokenIds: ...

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The prompt's own log-probabilities; complete before the first chunk."""
        ...


class ModelLease(Protocol):
    """A model that is needed: it is loaded if it was not, and stays until this is released.

    Use it as a context manager, or call ``release``.
    """

    def wait(self, timeout_s: float) -> bool:
        """Whether the model is ready, after at most ``timeout_s`` seconds.

        :raises ModelUnusable: it could not be loaded. Unavailable: the server stops.
        """
        ...

    def release(self) -> None:
        """Safe to call twice and from any thread."""
        ...

    def __enter__(self) -> ModelLease: ...

    def __exit__(self, *exc_info: object) -> None: ...


class TranscriptionStream(Protocol):
    """One running transcription; as ``InferenceStream``, with segments instead of chunks."""

    def poll(self, timeout_s: float) -> TranscribedSegment | None: ...

    def __iter__(self) -> Iterator[TranscribedSegment]: ...

    def close(self) -> None: ...

    @property
    def facts(self) -> TranscriptionFacts:
        """Final once iteration ended."""
        ...


class SpeechDetector(Protocol):
    """Tells speech from silence in one stream of samples at 16 kHz. One thread uses it."""

    def add(self, samples: Samples) -> list[float]:
        """The probability of speech in each window of 512 samples that is complete now."""
        ...

    def reset(self) -> None:
        """What comes next is another stream."""
        ...


class LiveTranscription(Protocol):
    """One turn of speech, written down while it is spoken."""

    @property
    def language(self) -> str | None:
        """A code; None: not known yet."""
        ...

    def text(self, samples: Samples, *, urgent: bool) -> str | None:
        """The words so far; blocks the calling thread until they are known.

        :param samples: of the whole turn at 16 kHz: those of the last call, and what followed.
        :param urgent: wait for one's turn; else None comes back while others are at it.
        :raises Cancelled: after ``close``.
        """
        ...

    def close(self) -> None:
        """Give it up; from any thread, also twice."""
        ...


class SpeechStream(Protocol):
    """One text being spoken. Each part is made when it is asked for, on the asking thread."""

    @property
    def model_id(self) -> str: ...

    @property
    def sample_rate_hz(self) -> int: ...

    @property
    def frame_samples(self) -> int:
        """Samples of one frame of the voice's model."""
        ...

    def __iter__(self) -> Iterator[SpokenPart]:
        """:raises Cancelled: after ``close``, or ``cancel`` by the request's id."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """The facade. Methods raise the errors of :mod:`ferrum_local.errors`."""

    def infer(
        self,
        request: InferenceRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> InferenceResponse:
        """Run a request to its end.

        :param is_abandoned: asked several times a second; True cancels the work.
        :raises Cancelled: when ``is_abandoned`` said so or ``cancel`` was called.
        """
        ...

    def infer_stream(self, request: InferenceRequest) -> InferenceStream:
        """Start a request. Whatever can be refused is refused here, before the first byte."""
        ...

    def validate(self, request: InferenceRequest) -> None:
        """Check a request that will be started later, as ``infer_stream`` would.

        :raises FerrumError: what can never succeed; a full queue is not looked at.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """Cancel by the request's id or its ``metadata["x_request_id"]``.

        :returns: False when no such request is running or queued.
        """
        ...

    def check(self) -> None:
        """Compare prefix trees, slots and llama.cpp's own positions, between two steps.

        :raises AssertionError: with what disagrees: a bug in the engine.
        """
        ...

    def resolve_model(self, name: str | None, kind: str | None = "chat") -> ModelInfo:
        """The model that ``name`` (id, alias, ``default``, empty or None) means; it need not be
        loaded. ``kind`` None: of any kind.

        :raises ModelNotFound: with the known ids in the text. ModelUnusable: it is on disk, and
            nothing that could be loaded.
        """
        ...

    def known_models(self) -> tuple[ModelInfo, ...]:
        """Every model that can be asked for, after a look for new files."""
        ...

    def lease_model(self, model_id: str, *, keep_alive_s: float | None = None) -> ModelLease:
        """Need a model for a while. What the other methods are asked to do with a model that is
        not loaded waits for it as well, but tells nobody meanwhile.

        :param keep_alive_s: how long it stays loaded after this; infinite is for ever, None is
            as the engine was set up.
        :raises Unavailable: the server starts or stops.
        """
        ...

    def unload_model(self, model_id: str) -> ModelInfo:
        """Free a model now, or (its state is ``unloading`` then) once its requests are done."""
        ...

    def apply_template(self, prompt: ChatPrompt, model: str | None = None) -> str:
        """The text that a model would see of a conversation.

        :raises InvalidRequest: the template refuses it.
        """
        ...

    def count_tokens(self, prompt: Prompt, model: str | None = None) -> int:
        """How many tokens a prompt is, whether or not it fits.

        :raises InvalidRequest: as ``infer_stream``.
        """
        ...

    def tokenize(
        self, text: str, model: str | None = None, *, add_special: bool, parse_special: bool
    ) -> TokenIds:
        """Token ids of ``text``.

        :param add_special: with the tokens that the model wants around a text.
        :param parse_special: the text of a control token becomes that token.
        """
        ...

    def token_bytes(self, tokens: TokenIds, model: str | None = None) -> tuple[bytes, ...]:
        """What each token stands for; one can be part of a character.

        :raises InvalidRequest: naming the first of ``tokens`` that is none.
        """
        ...

    def embed(
        self,
        request: EmbeddingRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> EmbeddingResponse:
        """Turn texts and images into vectors; blocks until all are there.

        :param is_abandoned: as in ``infer``.
        :raises InvalidRequest: naming the input at fault; ``ContextOverflow`` for a text that
            is too long.
        """
        ...

    def rerank(
        self,
        request: RerankRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> RerankResponse:
        """Score documents for a query, with a rerank model if there is one."""
        ...

    def embed_text(self, text: str, model: str | None = None) -> Sequence[float]: ...

    def embed_image(self, image: bytes, model: str | None = None) -> Sequence[float]:
        """:param image: an image file's bytes."""
        ...

    def transcribe(self, request: TranscriptionRequest) -> TranscriptionStream:
        """Start a transcription. What can be refused is refused here.

        :raises InvalidAudio: the file is empty or no audio. AudioTooLong: over the limit.
        :raises Unsupported: the model does not know the language, or cannot translate.
        """
        ...

    def speech_detector(self) -> SpeechDetector: ...

    def transcribe_live(
        self,
        request: LiveTranscriptRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> LiveTranscription:
        """Start to write down a turn of speech that is being spoken.

        Live speech does not wait for recordings.

        :param is_abandoned: polled while the model is loaded; ends the wait with ``Cancelled``.
        :raises Unsupported: the model does not know the language.
        """
        ...

    def speak(self, request: SpeechRequest) -> SpeechStream:
        """Start to speak a text.

        :raises InvalidRequest: nothing in it can be said, it is too long, no such speaker.
        """
        ...

    def speak_while_written(self, request: SpeechRequest, texts: Iterable[str]) -> SpeechStream:
        """Start to speak a text that comes in pieces; ``request.text`` is not looked at.

        :param texts: read on the thread that iterates the stream; it may block.
        """
        ...

    def voices(self) -> tuple[VoiceInfo, ...]: ...

    def resolve_voice(self, name: str | None, language: str | None = None) -> str:
        """The id of the voice that ``name`` (id, alias, a name of the table, None) means.

        :raises InvalidRequest: no such voice, or none that speaks ``language`` (a code).
        :raises ModelNotFound: there are no voices at all.
        """
        ...

    def transcribe_bytes(self, data: bytes, language: str | None = None) -> str:
        """The text of a whole file. ``language``: code or English name; None: detected."""
        ...

    def synthesize_speech(
        self, text: str, language: str | None = None, chunk_frames: int = 10
    ) -> Iterator[Sequence[float]]:
        """Samples at ``tts_sample_rate``, in chunks of ``chunk_frames`` times 80 ms."""
        ...

    def tts_sample_rate(self) -> int:
        """Of the first voice, in Hz."""
        ...

    def status(self) -> EngineStatus: ...

    def metrics(self) -> EngineMetrics: ...

    def add_observer(self, observer: RequestObserver) -> None:
        """Have ``observer`` told of latencies, from request threads (never the decode thread)."""
        ...

    def watch_loading(self, on_progress: Callable[[str, int], None]) -> None:
        """Have ``load`` tell of its progress: a model's id and how many percent of it are loaded,
        from 0 to 100 (it can be used). Called often, from the loading thread."""
        ...

    def import_for_load(self) -> bool:
        """Import on this thread what ``load`` will need.

        :returns: whether ``load`` will import nothing more: it may then run while this thread
            imports other things, which could otherwise meet modules that are half there.
        """
        ...

    def load(self) -> None:
        """Load the models that the engine was started with; returns when all are ready. Until
        then requests raise ``Unavailable`` (code ``loading``); ``status().state`` says ``loading``.

        :raises ModelLoadError: for the first model that cannot be loaded.
        """
        ...

    def start_draining(self) -> None:
        """Refuse new requests from now on; running ones go on."""
        ...

    def close(self, *, grace_s: float = 0.0) -> None:
        """Let running requests end for ``grace_s`` seconds, then end them, and free the models."""
        ...
