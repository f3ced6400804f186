"""Which of llama.cpp's two ways to compute attention a model gets."""

from __future__ import annotations

from ferrum_local.llm.devices import gpu_devices
from ferrum_local.llm.memory import KV_TYPE_BYTES, Shape
from ferrum_local.types import LlmOptions

# ggml adds values up 64 elements at a time (AVX-512; 32 with AVX2 or NEON); what is left of a
# head goes one by one, which made a step of 8 streams up to twice as long.
_HEAD_STEP = 64


def choose_flash_attention(options: LlmOptions, shape: Shape) -> str:
    """Resolve ``auto``: left to llama.cpp, which uses it wherever it can, but off where the CPU's
    kernel is slow, and on where it has to be (a quantised V cache)."""
    if options.flash_attn != "auto":
        return options.flash_attn
    if gpu_devices():
        return "auto"
    if KV_TYPE_BYTES[options.kv_type] < KV_TYPE_BYTES["f16"]:
        return "on"
    has_rest = shape.key_length % _HEAD_STEP or shape.value_length % _HEAD_STEP
    # ggml computes no bf16 in tiles, as it does long prompts.
    return "off" if has_rest or options.kv_type == "bf16" else "auto"
