"""The only caller of ``llama_decode`` and of llama.cpp's KV memory functions for generation.

One ``LlamaContext`` belongs to one thread; only ``abort`` may be called from others.
Each slot is its own KV stream (``kv_unified`` off): a sequence then attends over its
own cells only, which measured 1.2 to 2.5 times faster on a CPU once slots are filled.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import sys
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm import native_log, quick_calls
from ferrum_local.llm.model import LlamaModel

_GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30,
}  # fmt: skip
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}


class DecodeError(Exception):
    """``llama_decode`` did not succeed. ``status`` is its return value.

    1: no room in the KV cache; 2: aborted; negative: the batch or the context is bad.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"llama_decode returned {status}")
        self.status = status


@dataclasses.dataclass(frozen=True)
class ContextOptions:
    """Sizes are tokens. ``n_ctx`` is per slot."""

    n_ctx: int
    n_slots: int
    n_batch: int
    n_outputs: int  # rows of logits one step may ask for
    n_threads: int
    n_threads_batch: int
    flash_attn: str
    kv_type: str
    adapters: tuple[tuple[int, float], ...] = ()  # handles of LoRA adapters, and their scales


class LlamaContext:
    """One ``llama_context`` with its batch arrays and KV slots.

    :raises ModelLoadError: when llama.cpp cannot create the context (memory, options).
    """

    def __init__(self, model: LlamaModel, options: ContextOptions) -> None:
        self.model = model
        self.options = options
        self._log = native_log.install()
        self._batch = TokenBatch(options.n_batch)
        self._abort_flag, self._abort_callback = abort_callback()
        # A copy between KV streams is only noted by llama.cpp; the next decode moves the data.
        self._copy_sources: set[int] = set()
        self._copy_targets: set[int] = set()
        self._ctx = self._create()

    def _create(self) -> int:
        o = self.options
        self._log.recent.clear()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = o.n_ctx * o.n_slots
        params.n_seq_max = o.n_slots
        params.n_batch = o.n_batch
        params.n_ubatch = o.n_batch
        params.n_outputs_max = o.n_outputs
        params.n_threads = o.n_threads
        params.n_threads_batch = o.n_threads_batch
        params.flash_attn_type = FLASH_ATTN[o.flash_attn]
        params.type_k = params.type_v = _GGML_TYPES[o.kv_type]
        params.kv_unified = False
        params.swa_full = True  # a sliding window may then be cut back to a shared prefix
        params.no_perf = True
        params.abort_callback = self._abort_callback
        params.abort_callback_data = ctypes.addressof(self._abort_flag)
        ctx = llama_cpp.llama_init_from_model(self.model.handle, params)
        if not ctx:
            reasons = self._log.last_errors()
            raise ModelLoadError(
                f"{self.model.path}: cannot create a context of {o.n_slots} x {o.n_ctx} tokens"
                + (f" ({reasons[0]})" if reasons else "")
                + "; try a smaller --ctx-size or fewer --slots"
            )
        self._memory = llama_cpp.llama_get_memory(ctx)
        self._set_adapters(ctx)
        return int(ctx)

    def _set_adapters(self, ctx: int) -> None:
        """They hold for all of a context's sequences."""
        adapters = self.options.adapters
        if adapters:
            handles = (llama_cpp.llama_adapter_lora_p_ctypes * len(adapters))(
                *(
                    ctypes.cast(handle, llama_cpp.llama_adapter_lora_p_ctypes)
                    for handle, _ in adapters
                )
            )
            scales = (ctypes.c_float * len(adapters))(*(scale for _, scale in adapters))
            llama_cpp.llama_set_adapters_lora(ctx, handles, len(adapters), scales)

    @property
    def handle(self) -> int:
        """The raw ``llama_context`` pointer, for samplers."""
        return self._ctx

    # -- batch -----------------------------------------------------------------

    @property
    def n_batched(self) -> int:
        """Tokens in the batch so far."""
        return self._batch.n_tokens

    def clear_batch(self) -> None:
        self._batch.n_tokens = 0

    def add_tokens(
        self, slot: int, tokens: list[int], first_position: int, *, output: str = "none"
    ) -> int:
        """Append ``tokens`` of ``slot`` to the batch.

        :param output: which of them get logits: ``none``, ``last`` or ``all``.
        :returns: batch index of the last token, for ``logits``.
        """
        return self._batch.add(slot, tokens, first_position, output)

    def decode(self) -> None:
        """Run the batch.

        :raises DecodeError: the caller then truncates the batch's slots to what they held.
        """
        self._abort_flag[0] = b"\0"
        status = llama_cpp.llama_decode(self._ctx, self._batch.struct())
        if status != -1:  # -1: refused before anything was done
            self._forget_copies()
        if status != 0:
            raise DecodeError(status)
        # Wait here, so that the time of the step is the time of its work on every backend.
        llama_cpp.llama_synchronize(self._ctx)

    def abort(self) -> None:
        """Make a running ``decode`` return early (CPU backends). Any thread may call this."""
        self._log.expect_abort()
        self._abort_flag[0] = b"\1"

    def logits(self, batch_index: int) -> npt.NDArray[np.float32]:
        """A batch entry's logits as a view, valid until the next decode: shape (n_vocab,)."""
        pointer = quick_calls.llama_get_logits_ith(self._ctx, batch_index)
        return quick_calls.floats_at(pointer, self.model.n_vocab)

    # -- KV memory ---------------------------------------------------------------

    def truncate_slot(self, slot: int, n_tokens: int) -> bool:
        """Keep the first ``n_tokens`` positions of a slot.

        :returns: False when this memory cannot be cut there: recurrent state, or a sliding
            window that was restored from a saved state and begins later than the window there.
        """
        if self.model.n_swa > 0 and n_tokens > 0:
            first, last = self.slot_positions(slot)
            # The next token, at n_tokens, sees n_tokens - n_swa + 1 and what follows.
            if n_tokens <= last and first > max(0, n_tokens - self.model.n_swa + 1):
                return False
        return bool(quick_calls.llama_memory_seq_rm(self._memory, slot, n_tokens, -1))

    def clear_slot(self, slot: int) -> None:
        if not self._ctx:
            return  # nothing is left to clear
        quick_calls.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def copy_slot(self, source: int, target: int) -> None:
        """Make ``target`` hold what ``source`` holds; whole, as separate KV streams demand.

        It may be cut, continued and copied on at once, but its data move with the next decode.
        """
        self.clear_slot(target)
        quick_calls.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._copy_sources.add(source)
        self._copy_targets.add(target)

    def _forget_copies(self) -> None:
        self._copy_sources.clear()
        self._copy_targets.clear()

    def slot_state_bytes(self, slot: int) -> int:
        """How large ``save_slot`` would be."""
        return int(llama_cpp.llama_state_seq_get_size(self._ctx, slot))

    def save_slot(self, slot: int) -> memoryview | None:
        """A slot's KV state, for ``load_slot`` of this model and these KV types.

        None while its data are still to be copied. Of a sliding window, only the window at
        the slot's end is in it.
        """
        if slot in self._copy_targets or not (n_bytes := self.slot_state_bytes(slot)):
            return None
        # Megabytes, and streams wait: nothing is copied afterwards. Pages of its own go back to the
        # system whole; from the C library's heap they would leave holes that no other state fits.
        state = np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)
        n = llama_cpp.llama_state_seq_get_data(self._ctx, _bytes_of(state), len(state), slot)
        return state[:n].data if n else None

    def load_slot(self, slot: int, state: bytes | memoryview) -> bool:
        """Restore a saved state into an empty slot.

        :returns: False when llama.cpp refuses it, or when a copy from or to this slot is
            still to come, which would mix the two.
        """
        if slot in self._copy_targets or slot in self._copy_sources:
            return False
        array = np.frombuffer(state, np.uint8)
        n = llama_cpp.llama_state_seq_set_data(self._ctx, _bytes_of(array), len(array), slot)
        return bool(n)

    def slot_positions(self, slot: int) -> tuple[int, int]:
        """First and last position held by a slot; (-1, -1) when it is empty."""
        return (
            int(quick_calls.llama_memory_seq_pos_min(self._memory, slot)),
            int(quick_calls.llama_memory_seq_pos_max(self._memory, slot)),
        )

    def rebuild(self) -> None:
        """Start over with an empty context after a failure in native code."""
        self.close()
        self._forget_copies()
        self._ctx = self._create()

    @property
    def is_alive(self) -> bool:
        """False after a ``rebuild`` that failed; only ``rebuild`` may be called then."""
        return bool(self._ctx)

    def close(self) -> None:
        if self._ctx:
            llama_cpp.llama_free(self._ctx)
            self._ctx = 0


def _bytes_of(array: npt.NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def abort_callback() -> tuple[ctypes.Array[ctypes.c_char], Any]:
    """A flag of two bytes, and a callback for llama.cpp that aborts once its first is set.

    It is the C library's strlen: "" is false, any first byte is true. Native code asks it at
    every graph node, so a Python callback would fight for the GIL there.
    """
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    return (
        ctypes.create_string_buffer(2),
        ctypes.cast(libc.strlen, llama_cpp.ggml_abort_callback),
    )


class TokenBatch:
    """The arrays behind ``llama_batch``, filled through numpy views without per-token calls."""

    def __init__(self, capacity: int) -> None:
        self.n_tokens = 0
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._n_seq_ids = np.ones(capacity, dtype=np.int32)
        self._seq_ids = np.zeros(capacity, dtype=np.int32)
        # llama_batch wants a pointer per token to its list of sequence ids.
        self._seq_id_pointers = self._seq_ids.ctypes.data + 4 * np.arange(
            capacity, dtype=np.uintp
        ).astype(np.uintp)
        self._outputs = np.zeros(capacity, dtype=np.int8)
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self._struct = llama_cpp.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(int32_p),
            embd=None,
            pos=self._positions.ctypes.data_as(int32_p),
            n_seq_id=self._n_seq_ids.ctypes.data_as(int32_p),
            seq_id=self._seq_id_pointers.ctypes.data_as(ctypes.POINTER(int32_p)),
            logits=self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def add(self, slot: int, tokens: list[int], first_position: int, output: str) -> int:
        start, end = self.n_tokens, self.n_tokens + len(tokens)
        if end > len(self._tokens):
            # More would be an assertion in native code, and that ends the process.
            raise ValueError(f"batch of {end} tokens exceeds {len(self._tokens)}")
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(first_position, first_position + len(tokens))
        self._seq_ids[start:end] = slot
        self._outputs[start:end] = output == "all"
        if output == "last":
            self._outputs[end - 1] = 1
        self.n_tokens = end
        return end - 1

    def struct(self) -> llama_cpp.llama_batch:
        self._struct.n_tokens = self.n_tokens
        return self._struct
