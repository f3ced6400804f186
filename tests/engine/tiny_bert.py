"""A tiny BERT with random weights as GGUF, for each way of pooling, and its answers in numpy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np

from ferrum_local.llm.starter_embedding import gguf_tensor_name, gguf_token
from tests.reference_bert import Array, Weights, hidden_states

N_EMBD, N_HEAD, N_LAYER, N_FF, N_CTX = 32, 4, 2, 64, 64
EPSILON = 1e-12
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("cat", "dog", "sat", "on", "the", "mat", "ran", "fast", "##s", "##ing", "blue", ".")
TOKENS = SPECIAL + WORDS
CLS, SEP = 2, 3
POOLING = {
    "none": gguf.PoolingType.NONE,
    "mean": gguf.PoolingType.MEAN,
    "cls": gguf.PoolingType.CLS,
    "last": gguf.PoolingType.LAST,
    "rank": gguf.PoolingType.RANK,
}


@dataclasses.dataclass(frozen=True)
class TinyBert:
    """The weights that were written, and what must come out of them."""

    weights: Weights
    head: Weights

    def states(self, ids: list[int]) -> Array:
        return hidden_states(ids, self.weights, n_layer=N_LAYER, n_head=N_HEAD, epsilon=EPSILON)

    def vector(self, ids: list[int], pooling: str) -> Array:
        """The normalised embedding."""
        states = self.states(ids)
        pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
        normalised: Array = pooled / np.linalg.norm(pooled)
        return normalised

    def score(self, ids: list[int]) -> float:
        """What the rank head says: a pooler with tanh, then one output."""
        pooled = np.tanh(self.states(ids)[0] @ self.head["cls.weight"].T + self.head["cls.bias"])
        score = pooled @ self.head["cls.output.weight"].T + self.head["cls.output.bias"]
        return float(score[0])


def write_tiny_bert(path: Path, *, pooling: str | None, spoil: float | None = None) -> TinyBert:
    """Write one.

    :param pooling: a key of ``POOLING``; None leaves the file silent about it.
    :param spoil: put this number into the embedding of "blue".
    """
    random = np.random.default_rng(7)

    def matrix(n_out: int, n_in: int) -> Array:
        return random.normal(0.0, n_in**-0.5, (n_out, n_in))

    def vector(n: int) -> Array:
        return random.normal(0.0, 0.1, n)

    weights: Weights = {
        "embeddings.word_embeddings.weight": matrix(len(TOKENS), N_EMBD) * 4,
        "embeddings.position_embeddings.weight": matrix(N_CTX, N_EMBD),
        "embeddings.token_type_embeddings.weight": matrix(2, N_EMBD),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(N_LAYER):
        layer = f"encoder.layer.{i}"
        shapes = {
            "attention.self.query": (N_EMBD, N_EMBD),
            "attention.self.key": (N_EMBD, N_EMBD),
            "attention.self.value": (N_EMBD, N_EMBD),
            "attention.output.dense": (N_EMBD, N_EMBD),
            "intermediate.dense": (N_FF, N_EMBD),
            "output.dense": (N_EMBD, N_FF),
        }
        for name, (n_out, n_in) in shapes.items():
            weights[f"{layer}.{name}.weight"] = matrix(n_out, n_in)
            weights[f"{layer}.{name}.bias"] = vector(n_out)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name in norms:
        weights[f"{name}.weight"] = 1 + vector(N_EMBD)
        weights[f"{name}.bias"] = vector(N_EMBD)
    head: Weights = {
        "cls.weight": matrix(N_EMBD, N_EMBD),
        "cls.bias": vector(N_EMBD),
        "cls.output.weight": matrix(1, N_EMBD) * 3,
        "cls.output.bias": vector(1),
    }
    if spoil is not None:
        weights["embeddings.word_embeddings.weight"][TOKENS.index("blue")] = spoil

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_block_count(N_LAYER)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_eps(EPSILON)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(POOLING[pooling])
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(2)
    writer.add_token_list([gguf_token(t, is_special=t in SPECIAL) for t in TOKENS])
    special = [gguf.TokenType.CONTROL] * len(SPECIAL)
    special[1] = gguf.TokenType.UNKNOWN
    writer.add_token_types(special + [gguf.TokenType.NORMAL] * len(WORDS))
    writer.add_bos_token_id(CLS)
    writer.add_sep_token_id(SEP)
    writer.add_unk_token_id(1)
    writer.add_pad_token_id(0)
    for name, values in weights.items():
        tensor = gguf_tensor_name(name)
        assert tensor is not None
        writer.add_tensor(tensor, values.astype(np.float32))
    if pooling == "rank":
        for name, values in head.items():
            writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyBert(weights, head)


def ids_of(text: str) -> list[int]:
    """Of words and pieces that are tokens, with the markers: ``cat ##s ran``."""
    return [CLS, *(TOKENS.index(piece) for piece in text.split()), SEP]
