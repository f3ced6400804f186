"""The engine's embedding and rerank models: loaded, found by name, asked, counted, closed."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ferrum_local.engine.contracts import ModelMetrics
from ferrum_local.engine.jobs import Running
from ferrum_local.engine.loading import made_on_own_thread
from ferrum_local.errors import FerrumError, GenerationFailed, ModelLoadError
from ferrum_local.request_names import request_names
from ferrum_local.types import (
    EmbeddingRequest,
    EmbeddingResponse,
    LlmOptions,
    ModelSpec,
    RerankRequest,
    RerankResponse,
)
from ferrum_local.vectors import AnyRequest, Embedded, EmbeddingCounters, Ends

if TYPE_CHECKING:
    from ferrum_local.llm.model import LlamaModel

IsAbandoned: TypeAlias = Callable[[], bool] | None


class EmbeddingBackend(Protocol):
    """A runtime that makes vectors or scores; ``is_shared``: over a chat model's weights."""

    spec: ModelSpec
    n_ctx: int
    load_time_s: float
    counters: EmbeddingCounters

    @property
    def is_shared(self) -> bool: ...
    @property
    def is_ranker(self) -> bool: ...
    @property
    def scores_are_odds(self) -> bool: ...
    @property
    def capabilities(self) -> tuple[str, ...]: ...
    @property
    def n_sequences(self) -> int: ...
    @property
    def n_queued(self) -> int: ...
    @property
    def n_running(self) -> int: ...

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]: ...

    def embed(self, request: EmbeddingRequest, ends: Ends) -> Embedded: ...

    def embed_query_and_documents(self, request: RerankRequest, ends: Ends) -> Embedded: ...

    def rank(self, request: RerankRequest, ends: Ends) -> tuple[list[float], Sequence[Read]]: ...

    def close(self, error: FerrumError | None = None) -> None: ...


class Read(Protocol):
    """What a rank model read for one document."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def truncated(self) -> bool: ...


class EmbeddingModels:
    """The runtimes by model id.

    :param on_start: told of each accepted request. :param on_done: of its end, and why.
    """

    def __init__(
        self,
        options: LlmOptions,
        *,
        on_start: Callable[[Running], None],
        on_done: Callable[[Running, FerrumError | None], None],
    ) -> None:
        self._options = options
        self._on_start = on_start
        self._on_done = on_done
        self._runtimes: dict[str, EmbeddingBackend] = {}
        self._lock = threading.Lock()
        self._closed = False

    # -- life ----------------------------------------------------------------------------------

    def load(self, spec: ModelSpec, *, shared: LlamaModel | None = None) -> None:
        """Load one model, or a second context over the weights of a chat model.

        :raises ModelLoadError: when it cannot be used.
        """
        with contextlib.ExitStack() as held:
            if shared is not None:
                held.enter_context(shared.in_use())
            runtime = made_on_own_thread(lambda: self._make(spec, shared))
        with self._lock:
            closed = self._closed
            if not closed:
                self._runtimes[spec.id] = runtime
        if closed:
            runtime.close()
            raise ModelLoadError("The server was stopped while a model was loading.")

    def _make(self, spec: ModelSpec, shared: LlamaModel | None) -> EmbeddingBackend:
        if spec.kind != "image-embedding" and spec.mmproj is None:
            from ferrum_local.llm.embedding import EmbeddingRuntime

            return EmbeddingRuntime(spec, self._options, shared=shared)
        try:
            if spec.mmproj is not None:
                from ferrum_local.llm.multimodal import MultimodalEmbeddingRuntime

                return MultimodalEmbeddingRuntime(spec, self._options)
            from ferrum_local.vision.runtime import ImageEmbeddingRuntime
        except ImportError as error:
            raise ModelLoadError(
                f"{spec.path}: needs a package that is not installed ({error.name}); "
                "`pip install 'ferrum-local[vision]'` brings it"
            ) from error
        return ImageEmbeddingRuntime(spec, self._options)

    def __getitem__(self, model_id: str) -> EmbeddingBackend:
        return self._runtimes[model_id]

    def get(self, model_id: str) -> EmbeddingBackend | None:
        return self._runtimes.get(model_id)

    def unload(self, model_id: str, error: FerrumError) -> None:
        """Free one model, if it is there; what runs ends with ``error``."""
        with self._lock:
            runtime = self._runtimes.pop(model_id, None)
        if runtime is not None:
            runtime.close(error)

    def close(self, error: FerrumError) -> None:
        """End what runs with ``error`` and free the models."""
        with self._lock:
            self._closed = True
            runtimes = list(self._runtimes.values())
        for runtime in runtimes:
            runtime.close(error)

    # -- requests ------------------------------------------------------------------------------

    def embed(
        self, runtime: EmbeddingBackend, request: EmbeddingRequest, is_abandoned: IsAbandoned
    ) -> EmbeddingResponse:
        with self._running(request, is_abandoned) as ends:
            done = runtime.embed(request, ends)
        return EmbeddingResponse(
            model_id=runtime.spec.id,
            vectors=done.vectors,
            prompt_tokens=done.n_tokens,
            truncated=done.truncated,
        )

    def rerank(
        self, runtime: EmbeddingBackend, request: RerankRequest, is_abandoned: IsAbandoned
    ) -> RerankResponse:
        """Score by a rank model, or else by how similar the vectors are."""
        with self._running(request, is_abandoned) as ends:
            if not runtime.is_ranker:
                return _by_similarity(
                    runtime.spec.id, runtime.embed_query_and_documents(request, ends)
                )
            raw, tokens = runtime.rank(request, ends)
        return RerankResponse(
            model_id=runtime.spec.id,
            method="cross-encoder",
            scores=tuple(map(_probability, raw)) if runtime.scores_are_odds else tuple(raw),
            raw_scores=tuple(raw),
            prompt_tokens=sum(len(t.ids) for t in tokens),
            truncated=tuple(i for i, t in enumerate(tokens) if t.truncated),
        )

    @contextlib.contextmanager
    def _running(self, request: AnyRequest, is_abandoned: IsAbandoned) -> Iterator[Ends]:
        """Tell of the request from when it was accepted to its end."""
        running: list[_Running] = []

        def on_start(cancel: Callable[[], None]) -> None:
            running.append(_Running(request, cancel))
            self._on_start(running[0])

        error: FerrumError | None = None
        try:
            yield Ends(on_start, is_abandoned)
        except FerrumError as failure:
            error = failure
            raise
        except BaseException:
            error = GenerationFailed("An internal error ended this request.")
            raise
        finally:
            if running:
                self._on_done(running[0], error)

    # -- numbers -------------------------------------------------------------------------------

    @property
    def n_queued(self) -> int:
        return sum(runtime.n_queued for runtime in list(self._runtimes.values()))

    def metrics(self) -> Iterable[ModelMetrics]:
        for model_id, runtime in list(self._runtimes.items()):
            yield _model_metrics(
                f"{model_id} (embeddings)" if runtime.is_shared else model_id, runtime
            )


class _Running:
    """A request that was accepted."""

    def __init__(self, request: AnyRequest, cancel: Callable[[], None]) -> None:
        self.request_id = request.id
        self.names = request_names(request)
        self.cancel = cancel


def _by_similarity(model_id: str, done: Embedded) -> RerankResponse:
    """:param done: the query's vector, and after it those of the documents."""
    query, *documents = done.vectors
    # They are normalised; rounding may leave the product of two a trifle above 1.
    scores = tuple(
        max(-1.0, min(1.0, math.fsum(q * d for q, d in zip(query, vector, strict=True))))
        for vector in documents
    )
    return RerankResponse(
        model_id=model_id,
        method="embedding-similarity",
        scores=scores,
        raw_scores=scores,
        prompt_tokens=done.n_tokens,
        truncated=tuple(i - 1 for i in done.truncated if i),
    )


def _probability(log_odds: float) -> float:
    """The logistic function, without overflow."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    odds = math.exp(log_odds)
    return odds / (1.0 + odds)


def _model_metrics(model_id: str, runtime: EmbeddingBackend) -> ModelMetrics:
    counters = runtime.counters
    return ModelMetrics(
        model_id=model_id,
        running_sequences=runtime.n_running,
        waiting_requests=runtime.n_queued,
        slots=runtime.n_sequences,
        kv_cells_used=0,
        kv_cells_total=0,
        prompt_tokens_total=counters.tokens,
        prompt_tokens_evaluated_total=counters.tokens,
        prefix_hits_total=0,
        prefix_tokens_saved_total=0,
        generated_tokens_total=0,
        steps_total=counters.steps,
        draft_tokens_total=0,
        draft_tokens_accepted_total=0,
        preempted_total=0,
        moved_total=0,
        cancelled_total=counters.cancelled,
        load_time_s=runtime.load_time_s,
    )
