"""Tiny GGUF models with random weights, one for each kind of KV memory that llama.cpp has.

What they write means nothing, but it depends on every earlier token, so a prefix that was
reused wrongly shows. Tensor names and shapes are those of llama.cpp's ``src/models``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

N_EMBD = 64
N_HEAD = 4
N_CTX_TRAIN = 4096
WINDOW = 16  # of the sliding-window model, in tokens
_N_FF = 96
_D_CONV, _D_STATE, _DT_RANK = 4, 8, 8
_D_INNER = 2 * N_EMBD  # the only expansion that llama.cpp supports

Array = npt.NDArray[np.float32]


class _Builder:
    """One GGUF file: metadata through ``writer``, weights by name."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        n_layer: int,
        seed: int,
        marks: Sequence[str] = (),
        split_max_tensors: int = 0,
    ) -> None:
        self.writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
        self._random = np.random.default_rng(seed)
        self.writer.add_block_count(n_layer)
        self.writer.add_context_length(N_CTX_TRAIN)
        self.writer.add_embedding_length(N_EMBD)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self.is_silent = False
        n_vocab = self._vocabulary(marks)
        self.add("token_embd.weight", n_vocab, N_EMBD, scale=1.0)
        self.add("output.weight", n_vocab, N_EMBD, scale=0.5)
        self.ones("output_norm.weight", N_EMBD)

    def _vocabulary(self, marks: Sequence[str]) -> int:
        """Three control tokens, every byte, and ``marks``: any text can be tokenized."""
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
        types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
        types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL]
        tokens += marks
        types += [gguf.TokenType.CONTROL] * len(marks)
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(tokens)
        self.writer.add_token_scores([0.0] * len(tokens))
        self.writer.add_token_types(types)
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_unk_token_id(0)
        self.writer.add_add_bos_token(True)
        self.writer.add_add_space_prefix(False)
        return len(tokens)

    def add(self, name: str, *shape: int, scale: float | None = None) -> None:
        """A random matrix; the last dimension is the one that is summed over."""
        spread = shape[-1] ** -0.5 if scale is None else scale
        self.put(name, self._random.normal(0.0, spread, shape))

    def last(self, name: str, *shape: int) -> None:
        """The matrix that makes what a layer adds: random, or nothing if the model is silent."""
        if self.is_silent:
            self.put(name, np.zeros(shape))
        else:
            self.add(name, *shape)

    def ones(self, name: str, *shape: int) -> None:
        self.put(name, np.ones(shape))

    def put(self, name: str, values: npt.NDArray[np.floating]) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return self._random.uniform(low, high, shape).astype(np.float32)

    def attention_metadata(self, n_head_kv: int | list[int]) -> None:
        self.writer.add_head_count(N_HEAD)
        self.writer.add_head_count_kv(n_head_kv)
        self.writer.add_feed_forward_length(_N_FF)

    def ssm_metadata(self) -> None:
        self.writer.add_ssm_conv_kernel(_D_CONV)
        self.writer.add_ssm_inner_size(_D_INNER)
        self.writer.add_ssm_state_size(_D_STATE)
        self.writer.add_ssm_time_step_rank(_DT_RANK)

    def attention(self, layer: int) -> None:
        self.ones(f"blk.{layer}.attn_norm.weight", N_EMBD)
        for name in ("attn_q", "attn_k", "attn_v"):
            self.add(f"blk.{layer}.{name}.weight", N_EMBD, N_EMBD)
        self.last(f"blk.{layer}.attn_output.weight", N_EMBD, N_EMBD)

    def feed_forward(self, layer: int) -> None:
        self.ones(f"blk.{layer}.ffn_norm.weight", N_EMBD)
        self.add(f"blk.{layer}.ffn_gate.weight", _N_FF, N_EMBD)
        self.add(f"blk.{layer}.ffn_up.weight", _N_FF, N_EMBD)
        self.last(f"blk.{layer}.ffn_down.weight", N_EMBD, _N_FF)

    def ssm(self, layer: int, *, normed: bool) -> None:
        """A Mamba layer whose state fades slowly, so that early tokens still count."""
        blk = f"blk.{layer}"
        self.ones(f"{blk}.attn_norm.weight", N_EMBD)
        self.add(f"{blk}.ssm_in.weight", 2 * _D_INNER, N_EMBD)
        self.add(f"{blk}.ssm_conv1d.weight", _D_INNER, _D_CONV)
        self.put(f"{blk}.ssm_conv1d.bias", self.uniform(-0.1, 0.1, _D_INNER))
        self.add(f"{blk}.ssm_x.weight", _DT_RANK + 2 * _D_STATE, _D_INNER)
        self.add(f"{blk}.ssm_dt.weight", _D_INNER, _DT_RANK, scale=0.1)
        self.put(f"{blk}.ssm_dt.bias", self.uniform(-1.0, 0.0, _D_INNER))
        self.put(f"{blk}.ssm_a", self.uniform(-0.02, -0.001, _D_INNER, _D_STATE))
        self.ones(f"{blk}.ssm_d", _D_INNER)
        self.add(f"{blk}.ssm_out.weight", N_EMBD, _D_INNER)
        if normed:
            self.ones(f"{blk}.ssm_dt_norm.weight", _DT_RANK)
            self.ones(f"{blk}.ssm_b_norm.weight", _D_STATE)
            self.ones(f"{blk}.ssm_c_norm.weight", _D_STATE)

    def write(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_llama(
    path: Path,
    *,
    marks: Sequence[str] = (),
    chat_template: str = "",
    pooling: gguf.PoolingType | None = None,
    passes_through: bool = False,
    seed: int = 1,
    split_max_tensors: int = 0,
) -> None:
    """Full attention: the KV cache can be cut anywhere.

    :param marks: texts that are control tokens of its vocabulary.
    :param passes_through: layers add nothing, so a token's state is its embedding, normalised.
    :param seed: of the weights; another one writes other text.
    :param split_max_tensors: split it into parts of so many; 0: one file.
    """
    model = _Builder(
        path, "llama", n_layer=2, seed=seed, marks=marks, split_max_tensors=split_max_tensors
    )
    if chat_template:
        model.writer.add_chat_template(chat_template)
    if pooling is not None:
        model.writer.add_pooling_type(pooling)
    model.attention_metadata(N_HEAD)
    model.writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    model.is_silent = passes_through
    for layer in range(2):
        model.attention(layer)
        model.feed_forward(layer)
    model.write()


def write_mamba(path: Path) -> None:
    """Recurrent: one state for each slot, which cannot be cut."""
    model = _Builder(path, "mamba", n_layer=2, seed=2)
    model.writer.add_head_count(0)
    model.writer.add_feed_forward_length(0)
    model.ssm_metadata()
    for layer in range(2):
        model.ssm(layer, normed=False)
    model.write()


def write_jamba(path: Path) -> None:
    """Hybrid: Mamba layers beside one of attention, so both kinds of memory at once."""
    model = _Builder(path, "jamba", n_layer=3, seed=3)
    model.attention_metadata([0, N_HEAD, 0])
    model.ssm_metadata()
    for layer in range(3):
        if layer == 1:
            model.attention(layer)
        else:
            model.ssm(layer, normed=True)
        model.feed_forward(layer)
    model.write()


def write_gemma3(path: Path) -> None:
    """Sliding window: two of three layers see only the last ``WINDOW`` tokens."""
    model = _Builder(path, "gemma3", n_layer=3, seed=4)
    model.attention_metadata(N_HEAD)
    model.writer.add_key_length(N_EMBD // N_HEAD)
    model.writer.add_value_length(N_EMBD // N_HEAD)
    model.writer.add_sliding_window(WINDOW)
    model.writer.add_sliding_window_pattern([True, False, True])
    for layer in range(3):
        blk = f"blk.{layer}"
        model.attention(layer)
        model.feed_forward(layer)
        for name in ("attn_q_norm", "attn_k_norm"):
            model.ones(f"{blk}.{name}.weight", N_EMBD // N_HEAD)
        for name in ("post_attention_norm", "post_ffw_norm"):
            model.ones(f"{blk}.{name}.weight", N_EMBD)
    model.write()


TINY_MODELS: dict[str, Callable[[Path], None]] = {
    "llama": write_llama,
    "mamba": write_mamba,
    "jamba": write_jamba,
    "gemma3": write_gemma3,
}


def write_lora(path: Path, *, seed: int = 9, rank: int = 4, n_embd: int = N_EMBD) -> None:
    """An adapter for ``write_llama``'s model that changes what its first layer attends to.

    :param n_embd: of the model that it is for.
    """
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for name in ("attn_q", "attn_v", "attn_output"):
        for half, shape in (("lora_a", (rank, n_embd)), ("lora_b", (n_embd, rank))):
            values = random.normal(0.0, 0.5, shape).astype(np.float32)
            writer.add_tensor(f"blk.0.{name}.weight.{half}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
