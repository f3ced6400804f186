"""The runtime of an embedding model with a vision projector: texts and images in one space."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from ferrum_local.errors import FerrumError, GenerationFailed, ModelLoadError
from ferrum_local.image_files import open_image
from ferrum_local.llm.devices import gpu_devices
from ferrum_local.llm.embedding import EmbeddingRuntime
from ferrum_local.llm.image_context import ImageContext, Rgb, Row
from ferrum_local.turns import ComputeTurns
from ferrum_local.types import EmbeddingRequest, ImageInput, LlmOptions, ModelSpec
from ferrum_local.vectors import Embedded, Ends, NameOf, input_name, normalised


class MultimodalEmbeddingRuntime(EmbeddingRuntime):
    """As its base for texts; images are read one after the other, in a context of their own.

    :param spec: its ``mmproj`` is the projector's file.
    :raises ModelLoadError: as the base; the projector does not go with the model.
    """

    def __init__(self, spec: ModelSpec, options: LlmOptions) -> None:
        super().__init__(spec, options)
        try:
            if self.is_ranker:
                raise ModelLoadError(f"{spec.path}: is a rerank model, which reads no images")
            assert spec.mmproj is not None
            self._images = ImageContext(
                self.model,
                spec.mmproj,
                n_ctx=self.n_ctx,
                n_threads=self._n_threads,
                flash_attn=options.flash_attn,
                pooling=self._context.pooling,
                use_gpu=bool(gpu_devices()) and options.gpu_layers != 0,
            )
        except BaseException:
            super().close()
            raise
        self._turns = ComputeTurns(options.max_queue, self.counters)
        self._n_images_running = 0

    @property
    def capabilities(self) -> tuple[str, ...]:
        return ("embeddings", "image-embeddings")

    @property
    def n_queued(self) -> int:
        return super().n_queued + self._turns.n_waiting

    @property
    def n_running(self) -> int:
        return super().n_running + self._n_images_running

    def embed(
        self, request: EmbeddingRequest, ends: Ends, name_of: NameOf = input_name
    ) -> Embedded:
        images = {i: x for i, x in enumerate(request.inputs) if isinstance(x, ImageInput)}
        if not images:
            return super().embed(request, ends, name_of)
        n_dimensions = self._dimensions_of(request)
        decoded = {
            i: np.asarray(open_image(image.data, f"{name_of(i)}.image"))
            for i, image in images.items()
        }
        # The two parts of the request end together.
        cancelled = threading.Event()
        ends.on_start(cancelled.set)

        def is_abandoned() -> bool:
            return cancelled.is_set() or (ends.is_abandoned is not None and ends.is_abandoned())

        both = Ends(is_abandoned=is_abandoned)
        seen = list(decoded)
        vectors = normalised(
            self._rows(request, decoded, both, name_of)[:, :n_dimensions],
            lambda k: name_of(seen[k]),
        )
        rows = dict(zip(seen, vectors, strict=True))
        places = [i for i in range(len(request.inputs)) if i not in images]
        if not places:
            return Embedded(tuple(rows.values()), 0, ())
        texts = super().embed(
            msgspec.structs.replace(request, inputs=tuple(request.inputs[i] for i in places)),
            both,
            lambda k: name_of(places[k]),
        )
        rows.update(zip(places, texts.vectors, strict=True))
        return Embedded(
            vectors=tuple(rows[i] for i in range(len(request.inputs))),
            n_tokens=texts.n_tokens,
            truncated=tuple(places[k] for k in texts.truncated),
        )

    def _rows(
        self, request: EmbeddingRequest, images: Mapping[int, Rgb], ends: Ends, name_of: NameOf
    ) -> Row:
        """Shape (images, width)."""
        with (
            self._turns.turn(request, ends) as check,
            # OpenMP's helpers stay with the thread that began them, and end with it.
            ThreadPoolExecutor(1, thread_name_prefix=f"images-{self.spec.id}") as thread,
        ):
            return thread.submit(self._rows_in_turn, images, check, name_of).result()

    def _rows_in_turn(
        self, images: Mapping[int, Rgb], check: Callable[[], None], name_of: NameOf
    ) -> Row:
        rows = []
        self._n_images_running = 1
        try:
            for i, image in images.items():
                check()
                row = self._images.embed(image, f"{name_of(i)}.image")
                self.counters.steps += 1
                self.counters.inputs += 1
                if not np.isfinite(row).all():
                    raise GenerationFailed(
                        f"{name_of(i)}: what the model makes of it has numbers that are not "
                        "finite; the model file may be damaged."
                    )
                rows.append(row)
        finally:
            self._n_images_running = 0
        return np.stack(rows)

    def close(self, error: FerrumError | None = None) -> None:
        self._turns.stop(error)
        with self._turns.idle():
            self._images.close()
        super().close(error)
