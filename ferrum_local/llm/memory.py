"""How much memory a model will take, estimated from its header before it is loaded."""

from __future__ import annotations

import dataclasses
import os
import re

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.gguf_header import GgufHeader, Unread, parts_of
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
    n_ctx_train: int
    n_recurrent: int = 0  # layers without attention: they take no memory for a token
    state_bytes: int = 0  # recurrent state of one slot, whatever its length

    @classmethod
    def of(cls, header: GgufHeader) -> Shape:
        """Missing keys are taken as llama.cpp takes them."""
        arch = header.architecture or ""
        n_embd = header.integer(f"{arch}.embedding_length") or 0
        n_head = header.integer(f"{arch}.attention.head_count") or 1
        default_length = n_embd // n_head
        key_length = header.integer(f"{arch}.attention.key_length") or default_length
        layers = _tensor_names_by_layer(header)
        stateful = [names for names in layers.values() if any(map(_STATE_TENSOR.match, names))]
        return cls(
            weight_bytes=sum(os.path.getsize(part) for part in parts_of(header)),
            n_layer=header.block_count or 0,
            n_head=n_head,
            n_head_kv=_head_count_kv(header, n_head, key_length),
            n_embd=n_embd,
            key_length=key_length,
            value_length=header.integer(f"{arch}.attention.value_length") or default_length,
            n_ctx_train=header.context_length or DEFAULT_CTX,
            n_recurrent=sum("attn_k.weight" not in names for names in stateful),
            state_bytes=len(stateful) * _state_bytes_per_layer(header, n_embd),
        )

    def kv_bytes_per_token(self, kv_type: str) -> float:
        n_layer = self.n_layer - self.n_recurrent
        n_values = n_layer * self.n_head_kv * (self.key_length + self.value_length)
        return n_values * KV_TYPE_BYTES[kv_type]


# Tensors of a layer that keeps a state: Mamba, LFM2's convolutions, RWKV.
_STATE_TENSOR = re.compile(r"ssm_|shortconv\.|time_mix_")


def _tensor_names_by_layer(header: GgufHeader) -> dict[int, set[str]]:
    layers: dict[int, set[str]] = {}
    for tensor in header.tensors:
        found = re.match(r"blk\.(\d+)\.(.+)", tensor.name)
        if found:
            layers.setdefault(int(found[1]), set()).add(found[2])
    return layers


def _head_count_kv(header: GgufHeader, n_head: int, key_length: int) -> int:
    count = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    if not isinstance(count, Unread):
        return count if isinstance(count, int) and count else n_head
    # One number a layer, which the header's reader steps over: the tensors say it too.
    widths = [
        t.dims[1] for t in header.tensors if t.name.endswith("attn_k.weight") and len(t.dims) > 1
    ]
    if widths:
        return max(widths) // max(1, key_length)
    # Rather too few than to refuse a model that fits.
    return max(1, n_head // 4)


def _state_bytes_per_layer(header: GgufHeader, n_embd: int) -> int:
    """As llama.cpp's ``n_embd_r`` and ``n_embd_s``, which it keeps in f32."""

    def key(name: str) -> int:
        return header.integer(f"{header.architecture}.{name}") or 0

    if head_size := key("wkv.head_size"):
        return 4 * n_embd * (head_size + key("token_shift_count"))
    if n_kept := key("shortconv.l_cache"):
        return 4 * n_embd * (n_kept - 1)
    n_inner, n_state = key("ssm.inner_size"), key("ssm.state_size")
    n_conv = max(0, key("ssm.conv_kernel") - 1) * (n_inner + 2 * key("ssm.group_count") * n_state)
    return 4 * (n_conv + n_inner * n_state)


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
        while n_slots * (n_ctx * per_token + shape.state_bytes) > budget and n_slots > _MIN_SLOTS:
            n_slots //= 2
    if options.ctx_size is None and per_token:
        while n_slots * (n_ctx * per_token + shape.state_bytes) > budget and n_ctx > _MIN_CTX:
            n_ctx //= 2
    return Sizes(n_ctx, n_slots)


def estimate_bytes(
    shape: Shape, sizes: Sizes, kv_type: str, *, n_batch: int, flash_attn: bool
) -> int:
    """Weights, KV cache and the compute buffer of one step.

    The compute buffer is what its largest tensors take together: the attention scores of
    a full batch (without flash attention) or the activations of the feed-forward part.
    """
    kv_slot = sizes.n_ctx * shape.kv_bytes_per_token(kv_type) + shape.state_bytes
    kv = sizes.n_slots * kv_slot
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
