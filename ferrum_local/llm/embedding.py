"""The runtime of one embedding or rerank model: texts in, vectors or scores out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import psutil

from ferrum_local.errors import FerrumError, InvalidRequest, ModelLoadError, TextTooLong
from ferrum_local.llm import native_log
from ferrum_local.llm.devices import gpu_devices
from ferrum_local.llm.embedding_context import EmbeddingContext, EmbeddingContextOptions
from ferrum_local.llm.embedding_prefixes import prefixes_for
from ferrum_local.llm.embedding_queue import EmbeddingJob
from ferrum_local.llm.embedding_tokens import EmbeddingTokenizer, Tokens
from ferrum_local.llm.embedding_worker import EmbeddingWorker
from ferrum_local.llm.gguf_header import POOLING_RANK, GgufHeader, check_model_file
from ferrum_local.llm.memory import MIB, Shape, Sizes, estimate_bytes
from ferrum_local.llm.model import LlamaModel
from ferrum_local.llm.runtime import physical_cores
from ferrum_local.types import (
    EmbeddingRequest,
    ImageInput,
    LlmOptions,
    ModelSpec,
    RerankRequest,
    TokenIds,
)
from ferrum_local.vectors import (
    AnyRequest,
    EarlyEnd,
    Embedded,
    Ends,
    NameOf,
    document_names,
    input_name,
    normalised,
    query_and_document_names,
)

logger = logging.getLogger(__name__)

# Attention is computed over the whole step, across its sequences, so larger steps waste more of
# it; smaller ones use the cores less well. 256 short texts a second with 32 tokens: 375, 128: 455,
# 384: 392 (flash attention on; without it 358, 282 and 171).
STEP_TOKENS = 128
MAX_STEP_SEQUENCES = 128
MAX_LANES = 4  # each has a small context of its own
DEFAULT_CTX = 2048  # tokens of the longest text, at most, unless asked for
# How often a request looks whether its client is still there. The server also watches connections,
# so this is for where that cannot be; a crowd that looks often takes the cores from the steps.
_LOOK_S = 0.5


class EmbeddingRuntime:
    """One model, ready to embed; ``is_ranker`` models score pairs instead.

    ``n_ctx``: tokens that a text may have.

    :param shared: use this model's weights (a chat model's) instead of loading the file; it
        has to outlive the runtime.
    :raises ModelLoadError: when the file or the sizes asked for cannot be used.
    """

    def __init__(
        self, spec: ModelSpec, options: LlmOptions, *, shared: LlamaModel | None = None
    ) -> None:
        started = time.perf_counter()
        native_log.install()
        self.spec = spec
        self.is_shared = shared is not None
        header = check_model_file(spec.path)
        with contextlib.ExitStack() as owned:  # frees what was made if a later part fails
            if shared is None:
                self.model = LlamaModel(spec.path, gpu_layers=options.gpu_layers)
                owned.callback(self.model.close)
            else:
                self.model = shared
            self._n_threads = options.threads_batch or options.threads or physical_cores()
            contexts = [
                owned.enter_context(contextlib.closing(EmbeddingContext(self.model, sizes)))
                for sizes in self._context_sizes(header, options)
            ]
            self._context = contexts[0]
            self.is_ranker = self._context.pooling == "rank"
            self._tokenizer = EmbeddingTokenizer(
                self.model,
                lowercase=header.metadata.get("tokenizer.ggml.normalizer.lowercase") is not False,
            )
            self._prefixes = prefixes_for(
                options.embedding_prefix, spec.id, header.string("general.name") or ""
            )
            self._warm_up()
            self.worker = EmbeddingWorker(
                contexts,
                n_tokens=STEP_TOKENS,
                n_sequences=self._context.options.n_sequences,
                n_threads=self._n_threads,
                max_queue=options.max_queue,
                name=spec.id,
            )
            self.counters = self.worker.counters
            self._owned = owned.pop_all()
        self.load_time_s = time.perf_counter() - started
        logger.info(
            "%s: %s, %s pooling, texts of up to %d tokens, %d threads, loaded in %.1f s",
            spec.id, self.model.description, self._context.pooling, self.n_ctx,
            self._n_threads, self.load_time_s,
        )  # fmt: skip

    def _context_sizes(
        self, header: GgufHeader, options: LlmOptions
    ) -> list[EmbeddingContextOptions]:
        """Of the context for texts of any length, and of those that only run shared steps."""
        model = self.model
        if options.embedding_ctx_size is not None:
            # Beyond what it was trained for there is no position to look up.
            self.n_ctx = min(options.embedding_ctx_size, model.n_ctx_train)
        else:
            self.n_ctx = min(DEFAULT_CTX, model.n_ctx_train)
        on_gpu = bool(gpu_devices())
        first = EmbeddingContextOptions(
            n_ctx=self.n_ctx,
            n_batch=max(STEP_TOKENS, self.n_ctx),
            # Recurrent memory has a state for each sequence, whatever its length.
            n_sequences=1 if model.is_recurrent else MAX_STEP_SEQUENCES,
            flash_attn=options.flash_attn,
            pads=not on_gpu and options.flash_attn != "off",
            pooling=self._pooling(header, options),
        )
        self._check_fits(header, options, first.n_batch)
        # A GPU runs one step at a time anyway.
        n_lanes = 1 if on_gpu else min(self._n_threads, MAX_LANES)
        other = dataclasses.replace(first, n_ctx=STEP_TOKENS, n_batch=STEP_TOKENS)
        return [first, *[other] * (n_lanes - 1)]

    def _pooling(self, header: GgufHeader, options: LlmOptions) -> str | None:
        said = header.integer(f"{header.architecture}.pooling_type")
        if said == POOLING_RANK:  # there is no other way to use such a model
            return None
        if options.embedding_pooling != "auto":
            return options.embedding_pooling
        if not said:  # nothing, or none
            logger.info("%s: the file names no pooling; the mean is taken", self.spec.id)
            return "mean"
        return None

    def _check_fits(self, header: GgufHeader, options: LlmOptions, n_batch: int) -> None:
        if options.force or gpu_devices():
            return
        needed = estimate_bytes(
            Shape.of(header),
            Sizes(n_batch, 1),
            "f16",
            n_batch=n_batch,
            flash_attn=options.flash_attn != "off",
        )
        available = psutil.virtual_memory().available
        if needed > available:
            raise ModelLoadError(
                f"{self.spec.path}: needs about {needed // MIB} MiB for texts of {self.n_ctx} "
                f"tokens and {available // MIB} MiB are free; try a smaller --embedding-ctx-size "
                "or model, --force loads it anyway"
            )

    def _warm_up(self) -> None:
        """Page the weights in, so that the first request is no slower than the next."""
        tokens = self._tokenizer.text("hello").ids or [max(0, self.model.bos_token)]
        self._context.embed([tokens], n_threads=self._n_threads)

    # -- numbers -------------------------------------------------------------------------------

    @property
    def n_queued(self) -> int:
        """Requests that wait."""
        return self.worker.n_queued

    @property
    def n_running(self) -> int:
        """Texts in the step that runs."""
        return self.worker.n_running

    # -- requests ------------------------------------------------------------------------------

    @property
    def n_sequences(self) -> int:
        """Texts that a step may have."""
        return self._context.options.n_sequences

    @property
    def capabilities(self) -> tuple[str, ...]:
        return ("rerank",) if self.is_ranker else ("embeddings",)

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self._context.width

    @property
    def scores_are_odds(self) -> bool:
        """Whether a rank model's scores are log-odds of being relevant, not probabilities.

        A classifier of several classes ends with a softmax in llama.cpp.
        """
        return self.width == 1

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Of each text, with the markers around it."""
        return [len(self._tokenizer.text(text).ids) for text in texts]

    def embed(
        self, request: EmbeddingRequest, ends: Ends, name_of: NameOf = input_name
    ) -> Embedded:
        """Turn the request's inputs (texts and token ids) into normalised vectors.

        :param name_of: what the client calls them.
        :raises FerrumError: see :class:`ferrum_local.engine.contracts.Engine`.
        """
        if self.is_ranker:
            raise InvalidRequest(
                f"{self.spec.id} is a rerank model and makes no vectors; POST /v1/rerank uses it",
                param="model",
            )
        n_dimensions = self._dimensions_of(request)
        prefix = self._prefixes.of(request.input_type)
        limit = self.n_ctx if request.truncate else None
        tokens = []
        for i, item in enumerate(request.inputs):
            if isinstance(item, ImageInput):
                raise InvalidRequest(
                    f"{name_of(i)}.image: {self.spec.id} embeds text only; "
                    "--image-embedding-model loads a model for images",
                    param=f"{name_of(i)}.image",
                )
            tokens.append(self._checked(self._tokens(item, prefix, limit, name_of(i)), name_of(i)))
        rows = self._run(request, tokens, ends, name_of)
        return _embedded(rows[:, :n_dimensions], tokens, name_of)

    def _dimensions_of(self, request: EmbeddingRequest) -> int:
        """How many numbers of a vector are wanted."""
        n_dimensions = request.dimensions or self.width
        if n_dimensions > self.width:
            raise InvalidRequest(
                f"dimensions: {self.spec.id} makes vectors of {self.width} numbers, got "
                f"{n_dimensions}",
                param="dimensions",
            )
        return n_dimensions

    def embed_query_and_documents(self, request: RerankRequest, ends: Ends) -> Embedded:
        """Vectors of the query and, after it, of the documents, each with its prefix.

        :raises FerrumError: as ``embed``. The query is never cut.
        """
        limit = self.n_ctx if request.truncate else None
        name_of = query_and_document_names(request.param)
        query = self._tokenizer.text(self._prefixes.query + request.query)
        tokens = [self._checked(query, name_of(0))]
        for i, document in enumerate(request.documents, start=1):
            text = self._prefixes.document + document
            read = self._tokenizer.text(text, max_tokens=limit)
            tokens.append(self._checked(read, name_of(i)))
        return _embedded(self._run(request, tokens, ends, name_of), tokens, name_of)

    def rank(self, request: RerankRequest, ends: Ends) -> tuple[list[float], Sequence[Tokens]]:
        """What a rank model says of each document, and the tokens that it read for it.

        :raises FerrumError: as ``embed``. The query is never cut.
        """
        limit = self.n_ctx if request.truncate else None
        name_of = document_names(request.param)
        tokens = [
            self._checked(
                self._tokenizer.pair(request.query, document, max_tokens=limit),
                name_of(i),
                "with the query it",
            )
            for i, document in enumerate(request.documents)
        ]
        return [float(row[0]) for row in self._run(request, tokens, ends, name_of)], tokens

    def _tokens(self, item: str | TokenIds, prefix: str, limit: int | None, where: str) -> Tokens:
        if isinstance(item, str):
            return self._tokenizer.text(prefix + item, max_tokens=limit)
        return self._tokenizer.ids(item, param=where, max_tokens=limit)

    def _checked(self, tokens: Tokens, where: str, it: str = "it") -> Tokens:
        n = len(tokens.ids)
        if not n:
            raise InvalidRequest(f"{where}: {self.spec.id} finds no token in it", param=where)
        if n > self.n_ctx:
            raise TextTooLong(where, it, n_tokens=n, n_ctx=self.n_ctx, model_id=self.spec.id)
        return tokens

    def _run(
        self, request: AnyRequest, tokens: Sequence[Tokens], ends: Ends, name_of: NameOf
    ) -> npt.NDArray[np.float32]:
        job = EmbeddingJob(
            request.id, [t.ids for t in tokens], name_of, is_crowded=request.is_crowded
        )
        early_end = EarlyEnd(request, ends)
        self.worker.submit(job)
        ends.on_start(lambda: self.worker.cancel(job))
        while not job.done.wait(early_end.next_look_s(_LOOK_S)):
            reason = early_end.reason()
            if reason is not None:
                self.worker.cancel(job, reason)
        if job.error is not None:
            raise job.error
        return np.array([row for row in job.rows if row is not None])

    def close(self, error: FerrumError | None = None) -> None:
        """End everything that runs with ``error``, then free the context and the weights."""
        self.worker.stop(error)
        self._owned.close()


def _embedded(
    rows: npt.NDArray[np.float32], tokens: Sequence[Tokens], name_of: NameOf = input_name
) -> Embedded:
    return Embedded(
        vectors=normalised(rows, name_of),
        n_tokens=sum(len(t.ids) for t in tokens),
        truncated=tuple(i for i, t in enumerate(tokens) if t.truncated),
    )
