"""The runtimes of all kinds of models, by the model's id: loaded, found, freed."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import psutil

from ferrum_local.audio_types import AudioConfig
from ferrum_local.engine.contracts import ModelMetrics
from ferrum_local.engine.embedding import EmbeddingModels
from ferrum_local.engine.jobs import Running
from ferrum_local.engine.loading import made_on_own_thread
from ferrum_local.engine.speech import SpeechRuntimes
from ferrum_local.errors import FerrumError, ModelLoadError, Unavailable
from ferrum_local.registry.facts import ModelFacts, size_bytes_of
from ferrum_local.types import LlmOptions, ModelSpec

if TYPE_CHECKING:
    from ferrum_local.llm.runtime import LlmRuntime

logger = logging.getLogger(__name__)

# A speech model's weights are unpacked as they are loaded; measured 1.1 to 1.6 times the files.
_SPEECH_MEMORY_FACTOR = 1.6
# What loading a GGUF file of text imports, a chat model's and one that embeds.
_CHAT_MODULES = (
    "ferrum_local.llm.runtime",
    "encodings.unicode_escape",  # this and the next come with templates that are tried
    "jinja2.debug",
)
_EMBEDDING_MODULES = ("ferrum_local.llm.embedding",)
_CHAT_CAPABILITIES = ("chat", "completion")


class Runtimes:
    """See :class:`ferrum_local.engine.model_manager.ModelBackend`, which this is.

    :param on_start: told of each accepted request that is not a generation.
    :param on_done: of the end of one that embeds or ranks, and why.
    """

    def __init__(
        self,
        options: LlmOptions,
        audio: AudioConfig,
        *,
        on_start: Callable[[Running], None],
        on_done: Callable[[Running, FerrumError | None], None],
    ) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._closed = False
        self._backend_told = False
        self.llms: dict[str, LlmRuntime] = {}
        self.embeddings = EmbeddingModels(options, on_start=on_start, on_done=on_done)
        self.speech = SpeechRuntimes(audio, on_start=on_start)

    def import_for(self, specs: Collection[ModelSpec]) -> bool:
        """Import what ``load`` needs for ``specs``. :returns: whether that was all of it.

        Not for models other than GGUF files of text: their packages import for longer than a
        server may keep a client waiting for its first word.
        """
        kinds = {spec.kind for spec in specs}
        if not kinds <= {"chat", "embedding"} or any(spec.mmproj for spec in specs):
            return False
        chats = "chat" in kinds
        embeds = "embedding" in kinds or (chats and self._options.embeddings_from_chat)
        try:
            for name in _CHAT_MODULES * chats + _EMBEDDING_MODULES * embeds:
                importlib.import_module(name)
        except Exception as error:
            logger.debug("%s cannot be imported: %s", name, error)
            return False  # the load meets it, too, and says for which model
        return True

    def load(self, spec: ModelSpec, on_progress: Callable[[float], None]) -> None:
        if spec.kind in ("transcription", "speech"):
            self.speech.load(spec)
            return
        self._tell_backend()
        if spec.kind != "chat":
            self.embeddings.load(spec)
            return
        from ferrum_local.llm.runtime import LlmRuntime

        runtime = made_on_own_thread(
            functools.partial(LlmRuntime, spec, self._options, on_progress=on_progress)
        )
        with self._lock:
            closed = self._closed
            if not closed:
                self.llms[spec.id] = runtime
        if closed:
            runtime.close()
            raise ModelLoadError("The server was stopped while a model was loading.")
        if self._options.embeddings_from_chat:
            try:
                self.embeddings.load(spec, shared=runtime.model)
            except BaseException:
                self._close_llm(spec.id)
                raise

    def _tell_backend(self) -> None:
        from ferrum_local.llm.devices import backend_summary

        if not self._backend_told:
            self._backend_told = True
            logger.info("llama.cpp on %s", backend_summary())

    def unload(self, spec: ModelSpec) -> None:
        """Nobody uses it: what runs nevertheless is ended."""
        error = Unavailable(f"{spec.id} was unloaded.", retry_after_s=1)
        if spec.kind in ("transcription", "speech"):
            self.speech.unload(spec.id)
        else:
            self.embeddings.unload(spec.id, error)  # first: it may share a chat model's weights
            self._close_llm(spec.id, error)
        give_memory_back()

    def _close_llm(self, model_id: str, error: FerrumError | None = None) -> None:
        with self._lock:
            runtime = self.llms.pop(model_id, None)
        if runtime is not None:
            runtime.close(error)

    def needed_bytes(self, spec: ModelSpec) -> int:
        if spec.kind in ("transcription", "speech", "image-embedding"):
            return int(_SPEECH_MEMORY_FACTOR * size_bytes_of(spec.path))
        from ferrum_local.llm.fit import needed_bytes

        available = psutil.virtual_memory().available
        is_chat = spec.kind == "chat"
        return needed_bytes(spec.path, self._options, is_chat=is_chat, available_bytes=available)

    def free_bytes(self, loaded: Sequence[ModelSpec]) -> int:
        """Weights are mapped files, which count as available memory though they are in use."""
        mapped = [s for s in loaded if s.kind in ("chat", "embedding")]
        weights = sum(size_bytes_of(spec.path) for spec in mapped)
        return int(psutil.virtual_memory().available) - weights

    # -- facts -----------------------------------------------------------------------------

    def n_ctx(self, model_id: str) -> int | None:
        """Tokens that a request may have; None: it is not loaded, or reads no text."""
        runtime = self.llms.get(model_id) or self.embeddings.get(model_id)
        return None if runtime is None else runtime.n_ctx

    def capabilities(self, spec: ModelSpec, facts: ModelFacts | None) -> tuple[str, ...]:
        """What a model can do; before it is loaded, as far as its files tell."""
        if spec.kind in ("transcription", "speech"):
            return self.speech.capabilities(spec.id, spec.kind)
        said = _CHAT_CAPABILITIES if spec.kind == "chat" else ()
        embedder = self.embeddings.get(spec.id)
        if embedder is not None:
            return said + embedder.capabilities
        if spec.kind == "image-embedding":
            return ("embeddings", "image-embeddings")
        if spec.kind == "chat":
            return (*said, "embeddings") if self._options.embeddings_from_chat else said
        return ("rerank",) if facts is not None and facts.kind == "rerank" else ("embeddings",)

    def metrics(self) -> tuple[ModelMetrics, ...]:
        llms = list(self.llms.values())
        return (*map(_model_metrics, llms), *self.embeddings.metrics())

    @property
    def n_queued(self) -> int:
        queued = sum(r.runner.n_queued for r in list(self.llms.values()))
        return queued + self.embeddings.n_queued

    def close(self, error: FerrumError) -> None:
        """End what runs with ``error`` and free everything; what is loading now is freed then."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            llms = list(self.llms.values())
        self.embeddings.close(error)  # first: they may share a chat model's weights
        for runtime in llms:
            runtime.close(error)
        self.speech.close()


def give_memory_back() -> None:
    """Have what was freed leave the process.

    Runtimes refer to each other in circles. And glibc keeps freed memory in its arenas: 40 loads
    of one 25 MB model grew the process by 80 MB without the trim, and by nothing with it.
    """
    is_frozen = gc.get_freeze_count() > 0  # the server keeps what it started with out of it
    if is_frozen:
        gc.unfreeze()
    gc.collect()
    if is_frozen:
        gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


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
        moved_total=counters.moved,
        cancelled_total=counters.cancelled,
        load_time_s=runtime.load_time_s,
    )
