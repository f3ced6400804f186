"""Images through a text model with a vision projector (mmproj), by llama.cpp's mtmd.

Pooling sees one micro-batch, but an image is decoded apart from the text around it. So each
token's state is read, and pooled here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

from ferrum_local.errors import GenerationFailed, InvalidRequest, ModelLoadError
from ferrum_local.llm import native_log
from ferrum_local.llm.context import FLASH_ATTN
from ferrum_local.llm.gguf_header import check_projector_file
from ferrum_local.llm.model import LlamaModel

_SPARE_TOKENS = 16  # for the markers that models have around an image

Rgb = npt.NDArray[np.uint8]  # (height, width, 3)
Row = npt.NDArray[np.float32]


class ImageContext:
    """A projector, and a context of the text model that reads what comes out of it.

    It belongs to one thread at a time.

    :param n_ctx: tokens that an image may have. :param pooling: mean, cls or last.
    :raises ModelLoadError: the projector cannot be used, or not with this model.
    """

    def __init__(
        self,
        model: LlamaModel,
        projector: str,
        *,
        n_ctx: int,
        n_threads: int,
        flash_attn: str,
        pooling: str,
        use_gpu: bool,
    ) -> None:
        check_projector_file(projector)
        self._model = model
        self._pooling = pooling
        self._n_ctx = n_ctx
        self._log = native_log.install()
        self._log.take_mtmd()
        self._width: int = llama_cpp.llama_model_n_embd_out(model.handle)
        with contextlib.ExitStack() as owned:
            self._ctx = self._make_context(n_threads, flash_attn)
            owned.callback(llama_cpp.llama_free, self._ctx)
            if not llama_cpp.llama_get_memory(self._ctx):
                raise ModelLoadError(
                    f"{model.path}: is an encoder of texts alone; a projector goes with a decoder"
                )
            self._projector = self._load_projector(projector, n_threads, use_gpu)
            owned.callback(mtmd_cpp.mtmd_free, self._projector)
            self._owned = owned.pop_all()

    def _make_context(self, n_threads: int, flash_attn: str) -> int:
        params = llama_cpp.llama_context_default_params()
        # Models whose image tokens see each other want them in one micro-batch.
        params.n_ctx = params.n_batch = params.n_ubatch = self._n_ctx
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = FLASH_ATTN[flash_attn]
        params.embeddings = True
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
        params.swa_full = True
        params.no_perf = True
        ctx = llama_cpp.llama_init_from_model(self._model.handle, params)
        if not ctx:
            raise ModelLoadError(
                f"{self._model.path}: cannot create a context for images of {self._n_ctx} tokens"
            )
        return int(ctx)

    def _load_projector(self, path: str, n_threads: int, use_gpu: bool) -> mtmd_cpp.mtmd_context_p:
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = use_gpu
        params.n_threads = n_threads
        params.print_timings = False
        params.warmup = False
        params.image_max_tokens = self._n_ctx - _SPARE_TOKENS
        self._log.recent.clear()
        found: mtmd_cpp.mtmd_context_p | None = mtmd_cpp.mtmd_init_from_file(
            os.fsencode(path), self._model.handle, params
        )
        if not found:
            reasons = self._log.last_errors()
            raise ModelLoadError(
                f"{path}: cannot be used with {self._model.path}"
                + (f" ({reasons[0]})" if reasons else "")
            )
        with contextlib.ExitStack() as owned:
            owned.callback(mtmd_cpp.mtmd_free, found)
            if not mtmd_cpp.mtmd_support_vision(found):
                raise ModelLoadError(f"{path}: is a projector for sound, not for images")
            owned.pop_all()
        return found

    def embed(self, image: Rgb, param: str) -> Row:
        """The pooled state of one image, not normalised.

        :raises InvalidRequest: naming ``param``: the image has too many tokens for the model.
        :raises GenerationFailed: llama.cpp could not.
        """
        with self._chunks(image, param) as chunks:
            n_tokens = mtmd_cpp.mtmd_helper_get_n_tokens(chunks)
            if n_tokens > self._n_ctx:
                raise InvalidRequest(
                    f"{param}: the image has {n_tokens} tokens and the model reads at most "
                    f"{self._n_ctx} (--embedding-ctx-size)",
                    param=param,
                )
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._ctx), False)
            n_chunks = mtmd_cpp.mtmd_input_chunks_size(chunks)
            states = []
            position = 0
            for i in range(n_chunks):
                chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, i)
                assert chunk is not None
                rows, position = self._decode(chunk, position)
                states.append(rows)
        return self._pooled(np.concatenate(states))

    @contextlib.contextmanager
    def _chunks(self, image: Rgb, param: str) -> Iterator[mtmd_cpp.mtmd_input_chunks_p]:
        """The image as the model reads it, with the markers that belong around it."""
        pixels = np.ascontiguousarray(image, dtype=np.uint8)
        height, width, _ = pixels.shape
        marker = mtmd_cpp.mtmd_default_marker()
        text = mtmd_cpp.mtmd_input_text(
            text=marker, text_len=len(marker), add_special=True, parse_special=True
        )
        with contextlib.ExitStack() as owned:
            data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            bitmap = mtmd_cpp.mtmd_bitmap_init(width, height, data)
            owned.callback(mtmd_cpp.mtmd_bitmap_free, bitmap)
            chunks = mtmd_cpp.mtmd_input_chunks_init()
            assert chunks is not None
            owned.callback(mtmd_cpp.mtmd_input_chunks_free, chunks)
            bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
            status = mtmd_cpp.mtmd_tokenize(self._projector, chunks, ctypes.byref(text), bitmaps, 1)
            if status != 0:
                raise InvalidRequest(
                    f"{param}: the model cannot read an image of {width} x {height} pixels",
                    param=param,
                )
            yield chunks

    def _decode(self, chunk: mtmd_cpp.mtmd_input_chunk_p, position: int) -> tuple[Row, int]:
        """The states of a chunk's tokens, and the position after it."""
        n_tokens = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
        end = llama_cpp.llama_pos(position)
        status = mtmd_cpp.mtmd_helper_eval_chunk_single(
            self._projector, self._ctx, chunk, position, 0, self._n_ctx, True, ctypes.byref(end)
        )
        if status != 0:
            raise GenerationFailed(f"llama.cpp could not read the image (status {status}).")
        rows = np.empty((n_tokens, self._width), dtype=np.float32)
        for i in range(n_tokens):
            pointer = llama_cpp.llama_get_embeddings_ith(self._ctx, i)
            if not pointer:
                raise GenerationFailed("llama.cpp gave no state of an image's token.")
            ctypes.memmove(rows[i].ctypes.data, pointer, rows[i].nbytes)
        return rows, int(end.value)

    def _pooled(self, states: Row) -> Row:
        row: Row = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[
            self._pooling
        ]
        return row

    def close(self) -> None:
        self._owned.close()
