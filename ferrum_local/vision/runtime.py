"""The runtime of a CLIP-family model: images and texts to vectors of one space, by ONNX."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer

from ferrum_local.errors import (
    FerrumError,
    GenerationFailed,
    InvalidRequest,
    ModelLoadError,
    TextTooLong,
)
from ferrum_local.image_files import open_image
from ferrum_local.turns import ComputeTurns
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
    Embedded,
    EmbeddingCounters,
    Ends,
    NameOf,
    input_name,
    normalised,
    query_and_document_names,
)
from ferrum_local.vision.graphs import Feed, Graph, GraphSide, Rows
from ferrum_local.vision.images import Preprocessor
from ferrum_local.vision.layout import find_clip_files

logger = logging.getLogger(__name__)

BATCH = 16  # texts or images in one run of a graph

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
        text_graph = Graph(files.text_graph, n_threads)
        is_one = files.vision_graph == files.text_graph
        vision_graph = text_graph if is_one else Graph(files.vision_graph, n_threads)
        self._text = GraphSide(text_graph, "text")
        self._vision = GraphSide(vision_graph, "vision")
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
        self._lowercases = files.lowercases
        self.n_ctx = files.max_tokens
        self._pads_fully = files.pads_fully
        if is_one:
            empty = Image.new("RGB", (1, 1))
            self._text.fill_others({"pixel_values": self._preprocessor.pixels(empty)[None]})
            self._vision.fill_others(self._text_feed([self._encode("")]))
        self._n_running = 0
        self.counters = EmbeddingCounters()
        self._turns = ComputeTurns(options.max_queue, self.counters)
        self.load_time_s = time.perf_counter() - started
        logger.info(
            "%s: texts of up to %d tokens and images, %d threads, loaded in %.1f s",
            spec.id, self.n_ctx, n_threads, self.load_time_s,
        )  # fmt: skip

    @property
    def n_queued(self) -> int:
        return self._turns.n_waiting

    @property
    def n_running(self) -> int:
        return self._n_running

    # -- requests ------------------------------------------------------------------------------

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Of each text, with the markers around it."""
        return [len(self._encode(text)) for text in texts]

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
        rows = self._run(request, items, ends, input_name)
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
        name_of = query_and_document_names(request.param)
        items: list[Ids | bytes] = [self._ids(request.query, name_of(0), truncate=False)[0]]
        truncated = []
        for i, document in enumerate(request.documents, start=1):
            ids, cut = self._ids(document, name_of(i), truncate=request.truncate)
            items.append(ids)
            if cut:
                truncated.append(i)
        rows = self._run(request, items, ends, name_of)
        return _embedded(rows, items, truncated, name_of)

    def rank(self, request: RerankRequest, ends: Ends) -> tuple[list[float], Sequence[Any]]:
        """:raises InvalidRequest: always; such a model only makes vectors."""
        raise InvalidRequest(f"{self.spec.id} is no rerank model", param="model")

    def _ids(self, item: str | TokenIds, where: str, *, truncate: bool) -> tuple[Ids, bool]:
        if isinstance(item, str):
            ids = self._encode(item)
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

    def _encode(self, text: str) -> Ids:
        return list(self._tokenizer.encode(text.lower() if self._lowercases else text).ids)

    def _run(
        self, request: AnyRequest, items: Sequence[Ids | bytes], ends: Ends, name_of: NameOf
    ) -> Rows:
        """The rows of all items, in batches of one kind; one request at a time computes."""
        with self._turns.turn(request, ends) as check:
            try:
                return self._rows(items, check, name_of)
            finally:
                self._n_running = 0

    def _rows(
        self, items: Sequence[Ids | bytes], check: Callable[[], None], name_of: NameOf
    ) -> Rows:
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
                    f"{name_of(i)}: the model's vector has numbers that are not finite."
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
        return self._vision.run({"pixel_values": np.stack(pixels)})

    def _text_feed(self, texts: Sequence[Ids]) -> Feed:
        length = self.n_ctx if self._pads_fully else max(map(len, texts))
        ids = np.full((len(texts), length), self._pad_id, dtype=np.int64)
        # Models that were trained on full texts read the padding like any token.
        mask = np.full((len(texts), length), int(self._pads_fully), dtype=np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        return {"input_ids": ids, "attention_mask": mask, "position_ids": np.arange(length)[None]}

    def close(self, error: FerrumError | None = None) -> None:
        """Refuse and end everything; the graphs go with this object."""
        self._turns.stop(error)


def _pad_id(tokenizer: Tokenizer, padding: Any, pad_token: str | None) -> int:
    if pad_token is not None:
        found = tokenizer.token_to_id(pad_token)
        if found is not None:
            return int(found)
    return int((padding or {}).get("pad_id", 0))


def _embedded(
    rows: Rows,
    items: Sequence[Ids | bytes],
    truncated: Sequence[int],
    name_of: NameOf = input_name,
) -> Embedded:
    return Embedded(
        vectors=normalised(rows, name_of),
        n_tokens=sum(len(item) for item in items if not isinstance(item, bytes)),
        truncated=tuple(truncated),
    )
