"""How much memory a model will take, estimated from its header before it is loaded."""

from __future__ import annotations

import dataclasses

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.gguf_header import GgufHeader
from ferrum_local.types import LlmOptions

MIB = 1 << 20
DEFAULT_CTX = 8192
_DEFAULT_SLOTS = 8
_MIN_CTX = 512
_MIN_SLOTS = 2
_DEFAULT_KV_BYTES = 1 << 30  # all slots together; more only when asked for
# Bytes per element, from ggml's block layouts (a q8_0 block: 32 values in 34 bytes).
KV_TYPE_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    """What decides a model's memory, from its header."""

    weight_bytes: int
    n_layer: int
    n_head: int
    n_head_kv: int
    n_embd: int
    key_length: int
    value_length: int
    n_vocab: int
    n_ctx_train: int

    @classmethod
    def of(cls, header: GgufHeader) -> Shape:
        """Missing keys are taken as llama.cpp takes them."""
        arch = header.architecture or ""
        n_embd = header.integer(f"{arch}.embedding_length") or 0
        n_head = header.integer(f"{arch}.attention.head_count") or 1
        n_head_kv = header.integer(f"{arch}.attention.head_count_kv") or n_head
        default_length = n_embd // n_head
        embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
        return cls(
            weight_bytes=sum(t.size_bytes or 0 for t in header.tensors),
            n_layer=header.block_count or 0,
            n_head=n_head,
            n_head_kv=n_head_kv,
            n_embd=n_embd,
            key_length=header.integer(f"{arch}.attention.key_length") or default_length,
            value_length=header.integer(f"{arch}.attention.value_length") or default_length,
            n_vocab=embedding.dims[1] if embedding and len(embedding.dims) > 1 else 0,
            n_ctx_train=header.context_length or DEFAULT_CTX,
        )

    def kv_bytes_per_token(self, kv_type: str) -> float:
        n_values = self.n_layer * self.n_head_kv * (self.key_length + self.value_length)
        return n_values * KV_TYPE_BYTES[kv_type]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Tokens of context for each slot, and slots."""

    n_ctx: int
    n_slots: int


def choose_sizes(options: LlmOptions, shape: Shape, available_bytes: int) -> Sizes:
    """Context and slots. What was asked for is taken; what was not follows from the model
    and a quarter of the free memory, at most 1 GiB."""
    n_ctx = options.ctx_size or min(shape.n_ctx_train, DEFAULT_CTX)
    n_slots = options.slots or _DEFAULT_SLOTS
    budget = min(_DEFAULT_KV_BYTES, available_bytes // 4)
    per_token = shape.kv_bytes_per_token(options.kv_type)
    if options.slots is None:
        while n_ctx * n_slots * per_token > budget and n_slots > _MIN_SLOTS:
            n_slots //= 2
    if options.ctx_size is None:
        while n_ctx * n_slots * per_token > budget and n_ctx > _MIN_CTX:
            n_ctx //= 2
    return Sizes(n_ctx, n_slots)


def estimate_bytes(
    shape: Shape, sizes: Sizes, kv_type: str, *, n_batch: int, flash_attn: bool
) -> int:
    """Weights, KV cache and the compute buffer of one step.

    The compute buffer is what its largest tensors take together: the attention scores of
    a full batch (without flash attention) or the activations of the feed-forward part.
    """
    kv = sizes.n_ctx * sizes.n_slots * shape.kv_bytes_per_token(kv_type)
    scores = 0 if flash_attn else 4 * shape.n_head * n_batch * sizes.n_ctx
    activations = 4 * n_batch * shape.n_embd * 12
    return int(shape.weight_bytes + kv + scores + activations)


def check_fits(
    path: str,
    shape: Shape,
    sizes: Sizes,
    options: LlmOptions,
    *,
    n_batch: int,
    flash_attn: bool,
    available_bytes: int,
) -> None:
    """Refuse what will not fit, before minutes are lost.

    :raises ModelLoadError: with how much is missing and what would fit.
    """

    def needs(sizes: Sizes, kv_type: str) -> int:
        return estimate_bytes(shape, sizes, kv_type, n_batch=n_batch, flash_attn=flash_attn)

    needed = needs(sizes, options.kv_type)
    if needed <= available_bytes or options.force:
        return
    remedies = []
    n_ctx = sizes.n_ctx
    while n_ctx > _MIN_CTX:
        n_ctx //= 2
        if needs(Sizes(n_ctx, sizes.n_slots), options.kv_type) <= available_bytes:
            remedies.append(f"--ctx-size {n_ctx}")
            break
    if needs(Sizes(sizes.n_ctx, 1), options.kv_type) <= available_bytes and sizes.n_slots > 1:
        remedies.append("--slots 1")
    if needs(sizes, "q8_0") <= available_bytes:
        remedies.append("--kv-type q8_0")
    advice = f"{' or '.join(remedies)} fits" if remedies else "a smaller model is needed"
    raise ModelLoadError(
        f"{path}: needs about {needed // MIB} MiB ({sizes.n_slots} slots of {sizes.n_ctx} tokens) "
        f"and {available_bytes // MIB} MiB are free, {(needed - available_bytes) // MIB} MiB too "
        f"few; {advice}, --force loads it anyway"
    )
