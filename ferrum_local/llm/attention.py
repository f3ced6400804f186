"""Which of llama.cpp's two ways to compute attention a model gets."""

from __future__ import annotations

from ferrum_local.llm.devices import gpu_devices
from ferrum_local.llm.memory import Shape
from ferrum_local.types import LlmOptions

# ggml adds values up 64 elements at a time (AVX-512; 32 with AVX2 or NEON); what is left of a
# head goes one by one, which made a step of 8 streams up to twice as long.
_HEAD_STEP = 64
# Of these ggml computes long prompts in tiles.
_TILED_KV_TYPES = ("f32", "f16")


def choose_flash_attention(options: LlmOptions, shape: Shape) -> str:
    """Resolve ``auto``: left to llama.cpp, which uses it wherever it can, but off where the CPU's
    kernel is slow, and on where it has to be (a quantised V cache)."""
    if options.flash_attn != "auto":
        return options.flash_attn
    if gpu_devices():
        return "auto"
    if options.kv_type == "bf16":
        return "off"
    if options.kv_type not in _TILED_KV_TYPES:
        return "on"
    is_slow = shape.key_length % _HEAD_STEP or shape.value_length % _HEAD_STEP
    return "off" if is_slow else "auto"
