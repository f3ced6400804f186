"""Filling up a step changes its time and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ferrum_local.llm.embedding_context import EmbeddingContext, EmbeddingContextOptions
from ferrum_local.llm.model import LlamaModel

MODEL = Path(__file__).resolve().parents[2] / "models" / "all-minilm-l6-v2.f16.gguf"
OPTIONS = EmbeddingContextOptions(n_ctx=128, n_batch=128, n_sequences=2, flash_attn="auto")


@pytest.mark.parametrize(("n_tokens", "pads"), [(39, 0), (40, 24), (63, 1), (64, 0)])
def test_a_step_just_short_of_a_tile_is_filled_up(n_tokens: int, pads: int) -> None:
    model = LlamaModel(str(MODEL))
    plain = EmbeddingContext(model, OPTIONS)
    padded = EmbeddingContext(model, dataclasses.replace(OPTIONS, pads=True))
    text = [model.bos_token, *range(2000, 2000 + n_tokens - 1)]
    try:
        assert padded._n_padding(n_tokens, 1) == pads
        assert padded._n_padding(n_tokens, 2) == 0  # no sequence is left for it
        (expected,), (found,) = (c.embed([text], n_threads=1) for c in (plain, padded))
        cosine = expected @ found / np.linalg.norm(expected) / np.linalg.norm(found)
        assert cosine > 0.9999
    finally:
        plain.close()
        padded.close()
        model.close()
