"""The runtime of a CLIP-family model: images and texts to vectors of one space, by ONNX."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from ferrum_local.errors import (
    Cancelled,
    FerrumError,
    GenerationFailed,
    InvalidRequest,
    ModelLoadError,
    QueueFull,
    TextTooLong,
    Unavailable,
)
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
    EmbeddingCounters,
    Ends,
    normalised,
)
from ferrum_local.vision.images import Preprocessor, open_image
from ferrum_local.vision.layout import find_clip_files

logger = logging.getLogger(__name__)

BATCH = 16  # texts or images in one run of a graph
_OUTPUTS = {"text": ("text_embeds", "pooler_output"), "vision": ("image_embeds", "pooler_output")}

Rows = npt.NDArray[np.float32]
Ids = list[int]


class ImageEmbeddingRuntime:
    """One model, ready to embed. ``n_ctx``: tokens that a text may have.

    :raises ModelLoadError: when the directory or a graph cannot be used.
    """

    is_shared = False
    is_ranker = False
    scores_are_odds = False
    capabilities = ("embeddings", "image-embeddings")
    n_sequences = BATCH

    def __init__(self, spec: ModelSpec, options: LlmOptions) -> None:
        started = time.perf_counter()
        self.spec = spec
        files = find_clip_files(spec.path)
        n_threads = options.threads_batch or options.threads or os.cpu_count() or 1
        self._text = _Graph(files.text_graph, "text", n_threads)
        self._vision = _Graph(files.vision_graph, "vision", n_threads)
        self._preprocessor = Preprocessor(files.preprocessor)
        try:
            self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        except Exception as error:  # the library raises no class of its own
            raise ModelLoadError(f"{files.tokenizer}: cannot be read ({error})") from error
        # Both are done here, so that what is cut is known.
        self._tokenizer.no_truncation()
        padding = self._tokenizer.padding
        self._tokenizer.no_padding()
        self._pad_id = _pad_id(self._tokenizer, padding, files.pad_token)
        self.n_ctx = files.max_tokens
        self._pads_fully = files.pads_fully
        self._max_queue = options.max_queue
        self._one_at_a_time = threading.Lock()
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._n_running = 0
        self._stop_error: FerrumError | None = None
        self.counters = EmbeddingCounters()
        self.load_time_s = time.perf_counter() - started
        logger.info(
            "%s: texts of up to %d tokens and images, %d threads, loaded in %.1f s",
            spec.id, self.n_ctx, n_threads, self.load_time_s,
        )  # fmt: skip

    @property
    def n_queued(self) -> int:
        return self._n_waiting

    @property
    def n_running(self) -> int:
        return self._n_running

    # -- requests ------------------------------------------------------------------------------

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Of each text, with the markers around it."""
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]

    def embed(self, request: EmbeddingRequest, ends: Ends) -> Embedded:
        """Turn texts, token ids and images into normalised vectors.

        :raises FerrumError: as ``EmbeddingRuntime.embed``.
        """
        items: list[Ids | bytes] = []
        truncated = []
        for i, item in enumerate(request.inputs):
            if isinstance(item, ImageInput):
                items.append(item.data)
                continue
            ids, cut = self._ids(item, f"input[{i}]", truncate=request.truncate)
            items.append(ids)
            if cut:
                truncated.append(i)
        rows = self._run(request, items, ends)
        width = rows.shape[1]
        n_dimensions = request.dimensions or width
        if n_dimensions > width:
            raise InvalidRequest(
                f"dimensions: {self.spec.id} makes vectors of {width} numbers, got {n_dimensions}",
                param="dimensions",
            )
        return _embedded(rows[:, :n_dimensions], items, truncated)

    def embed_query_and_documents(self, request: RerankRequest, ends: Ends) -> Embedded:
        """Vectors of the query and, after it, of the documents. The query is never cut."""
        items: list[Ids | bytes] = [self._ids(request.query, "query", truncate=False)[0]]
        truncated = []
        for i, document in enumerate(request.documents):
            where = f"{request.param}[{i}]"
            ids, cut = self._ids(document, where, truncate=request.truncate)
            items.append(ids)
            if cut:
                truncated.append(i + 1)
        return _embedded(self._run(request, items, ends), items, truncated)

    def rank(self, request: RerankRequest, ends: Ends) -> tuple[list[float], Sequence[Any]]:
        """:raises InvalidRequest: always; such a model only makes vectors."""
        raise InvalidRequest(f"{self.spec.id} is no rerank model", param="model")

    def _ids(self, item: str | TokenIds, where: str, *, truncate: bool) -> tuple[Ids, bool]:
        if isinstance(item, str):
            ids = list(self._tokenizer.encode(item).ids)
        else:
            ids = list(item)
            n_vocab = self._tokenizer.get_vocab_size()
            for j, token in enumerate(ids):
                if not 0 <= token < n_vocab:
                    raise InvalidRequest(
                        f"{where}[{j}]: expected a token id from 0 to {n_vocab - 1}, got {token}",
                        param=f"{where}[{j}]",
                    )
        if len(ids) <= self.n_ctx:
            return ids, False
        if not truncate:
            raise TextTooLong(
                where, "it", n_tokens=len(ids), n_ctx=self.n_ctx, model_id=self.spec.id
            )
        # The last token is the marker whose state becomes the vector.
        return [*ids[: self.n_ctx - 1], ids[-1]], True

    def _run(self, request: AnyRequest, items: Sequence[Ids | bytes], ends: Ends) -> Rows:
        """The rows of all items, in batches of one kind; one request at a time computes."""
        early_end = EarlyEnd(request, ends)
        cancelled = threading.Event()
        self._wait_in_line()
        ends.on_start(cancelled.set)

        def check() -> None:
            reason = early_end.reason() or self._stop_error
            if cancelled.is_set():
                reason = Cancelled("The request was cancelled.")
            if reason is not None:
                self.counters.cancelled += 1
                raise reason

        try:
            while not self._one_at_a_time.acquire(timeout=0.1):
                check()
        finally:
            with self._lock:
                self._n_waiting -= 1
        try:
            return self._rows(items, check)
        finally:
            self._n_running = 0
            self._one_at_a_time.release()

    def _wait_in_line(self) -> None:
        with self._lock:
            if self._stop_error is not None:
                raise self._stop_error
            if self._n_waiting >= max(1, self._max_queue):
                raise QueueFull(
                    f"{self._n_waiting} requests for embeddings are waiting already (--max-queue "
                    f"{self._max_queue}); try again later",
                    retry_after_s=self._n_waiting,
                )
            self._n_waiting += 1

    def _rows(self, items: Sequence[Ids | bytes], check: Callable[[], None]) -> Rows:
        found: dict[int, npt.NDArray[np.float32]] = {}
        places = range(len(items))
        for kind in (list, bytes):
            of_kind = [i for i in places if isinstance(items[i], kind)]
            for start in range(0, len(of_kind), BATCH):
                check()
                batch = of_kind[start : start + BATCH]
                self._n_running = len(batch)
                rows = self._batch_rows([items[i] for i in batch], batch)
                self.counters.steps += 1
                self.counters.inputs += len(batch)
                found.update(zip(batch, rows, strict=True))
        for i in places:
            if not np.isfinite(found[i]).all():
                raise GenerationFailed(
                    f"input[{i}]: the model's vector has numbers that are not finite."
                )
        return np.stack([found[i] for i in places])

    def _batch_rows(self, items: Sequence[Ids | bytes], places: Sequence[int]) -> Rows:
        texts = [item for item in items if not isinstance(item, bytes)]
        if texts:
            self.counters.tokens += sum(map(len, texts))
            return self._text.run(self._text_feed(texts))
        pixels = [
            self._preprocessor.pixels(open_image(item, f"input[{place}].image"))
            for item, place in zip(items, places, strict=True)
            if isinstance(item, bytes)
        ]
        return self._vision.run({self._vision.inputs[0]: np.stack(pixels)})

    def _text_feed(self, texts: Sequence[Ids]) -> dict[str, Any]:
        length = self.n_ctx if self._pads_fully else max(map(len, texts))
        ids = np.full((len(texts), length), self._pad_id, dtype=np.int64)
        mask = np.zeros((len(texts), length), dtype=np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "position_ids": np.arange(length)[None]}
        return {name: feed[name] for name in self._text.inputs if name in feed}

    def close(self, error: FerrumError | None = None) -> None:
        """Refuse and end everything; the graphs go with this object."""
        with self._lock:
            self._stop_error = error or Unavailable("The server is shutting down.", retry_after_s=5)


class _Graph:
    """One ONNX graph with the output that is the vector.

    :param kind: ``text`` or ``vision``.
    """

    def __init__(self, path: os.PathLike[str], kind: str, n_threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        # Idle threads that spin would take the cores from generation.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                os.fspath(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # each version raises its own
            reason = str(error).splitlines()[0]
            raise ModelLoadError(f"{path}: ONNX Runtime cannot load this ({reason})") from error
        self.inputs = [i.name for i in self._session.get_inputs()]
        wanted = "pixel_values" if kind == "vision" else "input_ids"
        if wanted not in self.inputs:
            raise ModelLoadError(f"{path}: has no input {wanted}, but {', '.join(self.inputs)}")
        self.inputs.sort(key=lambda name: name != wanted)
        names = [o.name for o in self._session.get_outputs()]
        self._output = next((name for name in _OUTPUTS[kind] if name in names), None)
        if self._output is None:
            raise ModelLoadError(
                f"{path}: has no output {' or '.join(_OUTPUTS[kind])}, but {', '.join(names)}"
            )

    def run(self, feed: dict[str, Any]) -> Rows:
        try:
            (rows,) = self._session.run([self._output], feed)
        except Exception as error:
            logger.exception("ONNX Runtime failed")
            raise GenerationFailed("The model could not go on.") from error
        return np.asarray(rows, dtype=np.float32)


def _pad_id(tokenizer: Tokenizer, padding: Any, pad_token: str | None) -> int:
    if pad_token is not None:
        found = tokenizer.token_to_id(pad_token)
        if found is not None:
            return int(found)
    return int((padding or {}).get("pad_id", 0))


def _embedded(rows: Rows, items: Sequence[Ids | bytes], truncated: Sequence[int]) -> Embedded:
    return Embedded(
        vectors=normalised(rows),
        n_tokens=sum(len(item) for item in items if not isinstance(item, bytes)),
        truncated=tuple(truncated),
    )
