"""How much memory a model file would take if it were loaded now."""

from __future__ import annotations

from ferrum_local.llm.attention import choose_flash_attention
from ferrum_local.llm.devices import gpu_devices
from ferrum_local.llm.embedding import DEFAULT_CTX, STEP_TOKENS
from ferrum_local.llm.gguf_header import check_model_file
from ferrum_local.llm.memory import Shape, Sizes, choose_sizes, estimate_bytes
from ferrum_local.llm.runtime import MAX_BATCH
from ferrum_local.types import LlmOptions


def needed_bytes(path: str, options: LlmOptions, *, is_chat: bool, available_bytes: int) -> int:
    """As the runtimes estimate it; 0 where they would not look: forced, or on a GPU.

    :raises ModelLoadError: the file cannot be used.
    """
    header = check_model_file(path)
    if options.force or gpu_devices():
        return 0
    shape = Shape.of(header)
    if is_chat:
        sizes, kv_type, n_batch = (
            choose_sizes(options, shape, available_bytes),
            options.kv_type,
            MAX_BATCH,
        )
        flash_attn = choose_flash_attention(options, shape) != "off"
    else:
        n_ctx = min(options.embedding_ctx_size or DEFAULT_CTX, shape.n_ctx_train)
        n_batch = max(STEP_TOKENS, n_ctx)
        sizes, kv_type, flash_attn = Sizes(n_batch, 1), "f16", options.flash_attn == "on"
    return estimate_bytes(shape, sizes, kv_type, n_batch=n_batch, flash_attn=flash_attn)
