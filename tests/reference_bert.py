"""BERT straight from its definition, in numpy: what llama.cpp's vectors are compared with.

Weights have Hugging Face's names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


def hidden_states(
    ids: Sequence[int], weights: Weights, *, n_layer: int, n_head: int, epsilon: float
) -> Array:
    """The last layer's state of each token, shape (tokens, width)."""

    def dense(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def layer_norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        normed: Array = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        return normed

    x = weights["embeddings.word_embeddings.weight"][list(ids)]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = layer_norm(
        x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
    )
    for i in range(n_layer):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            dense(x, f"{layer}.attention.self.{part}").reshape(len(ids), n_head, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        seen = ((odds / odds.sum(-1, keepdims=True)) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        attended = x + dense(seen, f"{layer}.attention.output.dense")
        x = layer_norm(attended, f"{layer}.attention.output.LayerNorm")
        inner = dense(x, f"{layer}.intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = layer_norm(x + dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x
