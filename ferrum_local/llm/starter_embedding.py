"""Convert the starter embedding model, all-MiniLM-L6-v2, to GGUF, as f16 and q8_0.

Weights come from the fetched safetensors file, the vocabulary from vocab.txt; llama.cpp's own
quantizer makes the q8_0. What is in place is left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from ferrum_local.errors import FerrumError, ModelLoadError
from ferrum_local.llm.gguf_header import read_header

SOURCE = Path("src") / "all-minilm-l6-v2"  # below the models directory
NAME = "all-minilm-l6-v2"
# Raised when the files must be made again; written into them under this key.
CONVERSION = "1"
CONVERSION_KEY = "ferrum_local.conversion"

_FTYPE_F16, _FTYPE_Q8_0 = 1, 7  # llama_ftype
_TENSORS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER_TENSORS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
# llama.cpp reads these as f32 only.
_ALWAYS_F32 = ("position_embd", "token_types")
_UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")


class ConversionError(FerrumError):
    """The model cannot be converted; the message is for a person."""


def gguf_tensor_name(name: str) -> str | None:
    """llama.cpp's name for a tensor of ``BertModel``; None for one that embedding does not need.

    :raises ConversionError: for a tensor that is not BERT's.
    """
    if name in _UNUSED:
        return None
    module, _, kind = name.rpartition(".")
    if module in _TENSORS:
        return f"{_TENSORS[module]}.{kind}"
    prefix, _, rest = module.partition("encoder.layer.")
    layer, _, part = rest.partition(".")
    if prefix or part not in _LAYER_TENSORS:
        raise ConversionError(f"{name}: not a tensor of BERT")
    return f"blk.{layer}.{_LAYER_TENSORS[part]}.{kind}"


def gguf_token(token: str, *, is_special: bool) -> str:
    """A WordPiece token as llama.cpp has it: U+2581 begins a word, where BERT marks the others."""
    if is_special:
        return token
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def write_f16(source: Path, target: Path) -> None:
    """Write the model in ``source`` to ``target``, its matrices as f16."""
    import gguf
    import numpy as np
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text("utf-8"))
    tokens = (source / "vocab.txt").read_text("utf-8").splitlines()
    if len(tokens) != config["vocab_size"]:
        raise ConversionError(f"{source}: vocab.txt has {len(tokens)} tokens, not as config.json")
    special = json.loads((source / "special_tokens_map.json").read_text("utf-8"))
    ids = {kind: tokens.index(token) for kind, token in special.items()}

    writer = gguf.GGUFWriter(target, "bert")
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_file_type(_FTYPE_F16)
    writer.add_string(CONVERSION_KEY, CONVERSION)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)

    types = [gguf.TokenType.NORMAL] * len(tokens)
    for token_id in ids.values():
        types[token_id] = gguf.TokenType.CONTROL
    types[ids["unk_token"]] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list(
        [gguf_token(t, is_special=i in ids.values()) for i, t in enumerate(tokens)]
    )
    writer.add_token_types(types)
    writer.add_bos_token_id(ids["cls_token"])
    writer.add_sep_token_id(ids["sep_token"])
    writer.add_unk_token_id(ids["unk_token"])
    writer.add_pad_token_id(ids["pad_token"])
    writer.add_mask_token_id(ids["mask_token"])
    writer.add_add_bos_token(True)
    writer.add_add_sep_token(True)

    for name, values in load_file(source / "model.safetensors").items():
        gguf_name = gguf_tensor_name(name)
        if gguf_name is not None:
            is_matrix = values.ndim == 2 and not gguf_name.startswith(_ALWAYS_F32)
            writer.add_tensor(gguf_name, values.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize_q8_0(source: Path, target: Path) -> None:
    """Quantize a GGUF with llama.cpp.

    :raises ConversionError: when llama.cpp cannot.
    """
    import ctypes

    import llama_cpp

    from ferrum_local.llm import native_log

    log = native_log.install()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FTYPE_Q8_0
    code = llama_cpp.llama_model_quantize(
        os.fsencode(source), os.fsencode(target), ctypes.byref(params)
    )
    if code != 0:
        reasons = log.last_errors()
        raise ConversionError(f"llama.cpp cannot quantize {source.name}: {reasons or code}")


def is_converted(path: Path) -> bool:
    """Whether ``path`` is a whole file of this conversion; only its header is read."""
    try:
        return read_header(path).string(CONVERSION_KEY) == CONVERSION
    except ModelLoadError:  # absent, cut short, or something else
        return False


def convert(models_dir: Path) -> bool:
    """Make ``all-minilm-l6-v2.f16.gguf`` and ``.q8_0.gguf``; False when both are in place.

    :raises ConversionError: when the source is missing or llama.cpp cannot quantize it.
    """
    f16, q8_0 = (models_dir / f"{NAME}.{kind}.gguf" for kind in ("f16", "q8_0"))
    if is_converted(f16) and is_converted(q8_0):
        return False
    source = models_dir / SOURCE
    if not (source / "model.safetensors").is_file():
        raise ConversionError(f"{source} is not there: fetch it with `ferrum-local models pull`")
    _replace(f16, lambda part: write_f16(source, part))
    _replace(q8_0, lambda part: quantize_q8_0(f16, part))
    return True


def _replace(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` write a file that appears whole at ``target``, or not at all."""
    part = target.with_name(f".{target.name}.part")
    try:
        make(part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
