"""A ``llama_context`` that turns token sequences into one vector each, many to a step.

It belongs to one thread at a time; only ``abort`` may be called from others.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm import native_log, quick_calls
from ferrum_local.llm.context import FLASH_ATTN, DecodeError, TokenBatch, abort_callback
from ferrum_local.llm.model import LlamaModel

POOLING = {
    "none": llama_cpp.LLAMA_POOLING_TYPE_NONE,
    "mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama_cpp.LLAMA_POOLING_TYPE_CLS,
    "last": llama_cpp.LLAMA_POOLING_TYPE_LAST,
    "rank": llama_cpp.LLAMA_POOLING_TYPE_RANK,
}

# From 64 queries on, the CPU computes flash attention in tiles. 63 tokens of MiniLM took 24 ms,
# 64 took 12 ms, as long as 40 without tiles.
_TILE, _PADDED_FROM = 64, 40


@dataclasses.dataclass(frozen=True)
class EmbeddingContextOptions:
    """``n_ctx``: tokens of the longest sequence. ``n_batch``: tokens of a step, at least that.

    ``pads``: fill up small steps, which helps the CPU's flash attention.
    ``pooling``: a key of :data:`POOLING`, or None for what the model says.
    """

    n_ctx: int
    n_batch: int
    n_sequences: int
    flash_attn: str
    pads: bool = False
    pooling: str | None = None


class EmbeddingContext:
    """One context in embedding mode.

    ``pooling`` is what it came to; ``width`` the length of a vector (of a rank model: scores).

    :raises ModelLoadError: when llama.cpp cannot create the context.
    """

    def __init__(self, model: LlamaModel, options: EmbeddingContextOptions) -> None:
        self.model = model
        self.options = options
        self._log = native_log.install()
        self._batch = TokenBatch(options.n_batch)
        self._abort_flag, self._abort_callback = abort_callback()
        self._ctx = self._create()
        value = llama_cpp.llama_pooling_type(self._ctx)
        self.pooling = next(name for name, number in POOLING.items() if number == value)
        self.width: int = (
            llama_cpp.llama_model_n_cls_out(model.handle)
            if self.pooling == "rank"
            else llama_cpp.llama_model_n_embd_out(model.handle)
        )

    def _create(self) -> int:
        o = self.options
        self._log.recent.clear()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = o.n_batch
        params.n_seq_max = o.n_sequences
        params.flash_attn_type = FLASH_ATTN[o.flash_attn]
        params.embeddings = True
        params.pooling_type = (
            llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED if o.pooling is None else POOLING[o.pooling]
        )
        # Pooling sees one micro-batch. Only a unified cache keeps sequences of different
        # lengths together in it.
        params.kv_unified = True
        params.swa_full = True
        params.no_perf = True
        params.abort_callback = self._abort_callback
        params.abort_callback_data = ctypes.addressof(self._abort_flag)
        ctx = llama_cpp.llama_init_from_model(self.model.handle, params)
        if not ctx:
            reasons = self._log.last_errors()
            raise ModelLoadError(
                f"{self.model.path}: cannot create a context for embeddings of {o.n_ctx} tokens"
                + (f" ({reasons[0]})" if reasons else "")
            )
        return int(ctx)

    def embed(self, sequences: Sequence[list[int]], *, n_threads: int) -> npt.NDArray[np.float32]:
        """One step: the pooled vector of each sequence, not normalised, shape (n, width).

        :raises DecodeError: the step did not succeed.
        :raises ValueError: more tokens or sequences than a step may have.
        :raises ModelLoadError: there is no context since a failure, and none can be made.
        """
        if len(sequences) > self.options.n_sequences:
            raise ValueError(f"{len(sequences)} sequences exceed {self.options.n_sequences}")
        if not self._ctx:  # a rebuild failed
            self._ctx = self._create()
        self._batch.n_tokens = 0
        for i, tokens in enumerate(sequences):
            self._batch.add(i, tokens, 0, "all")
        n_padding = self._n_padding(self._batch.n_tokens, len(sequences))
        if n_padding:
            self._batch.add(len(sequences), sequences[0][:1] * n_padding, 0, "all")
        quick_calls.llama_set_n_threads(self._ctx, n_threads, n_threads)
        memory = quick_calls.llama_get_memory(self._ctx)
        if memory:  # encoders have none
            quick_calls.llama_memory_clear(memory, False)
        self._abort_flag[0] = b"\0"
        status = llama_cpp.llama_decode(self._ctx, self._batch.struct())
        if status != 0:
            raise DecodeError(status)
        llama_cpp.llama_synchronize(self._ctx)
        rows = np.empty((len(sequences), self.width), dtype=np.float32)
        for i in range(len(sequences)):
            pointer = quick_calls.llama_get_embeddings_seq(self._ctx, i)
            if not pointer:
                raise DecodeError(-1)
            rows[i] = quick_calls.floats_at(pointer, self.width)
        return rows

    def _n_padding(self, n_tokens: int, n_sequences: int) -> int:
        """Tokens that make a step faster by filling a tile of the CPU's flash attention."""
        has_room = n_sequences < self.options.n_sequences and _TILE <= self.options.n_batch
        if self.options.pads and has_room and _PADDED_FROM <= n_tokens < _TILE:
            return _TILE - n_tokens
        return 0

    def abort(self) -> None:
        """Make a running ``embed`` fail early (CPU backends). Any thread may call this."""
        self._log.expect_abort()
        self._abort_flag[0] = b"\1"

    def rebuild(self) -> None:
        """Start over after a failure in native code."""
        self.close()
        self._ctx = self._create()

    def close(self) -> None:
        if self._ctx:
            llama_cpp.llama_free(self._ctx)
            self._ctx = 0
