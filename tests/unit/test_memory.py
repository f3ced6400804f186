"""Memory estimates and the sizes that follow from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.gguf_header import read_header
from ferrum_local.llm.memory import Shape, Sizes, check_fits, choose_sizes, estimate_bytes
from ferrum_local.types import LlmOptions
from tests.conftest import SMOLLM2
from tests.engine.tiny_models import N_EMBD, N_HEAD, write_jamba, write_mamba

GIB = 1 << 30
EIGHT_B = Shape(
    weight_bytes=5 * GIB, n_layer=32, n_head=32, n_head_kv=8, n_embd=4096,
    key_length=128, value_length=128, n_ctx_train=131_072,
)  # fmt: skip


def test_the_shape_of_smollm2_is_read_from_its_header() -> None:
    shape = Shape.of(read_header(SMOLLM2))
    assert dataclasses.replace(shape, weight_bytes=0) == Shape(
        weight_bytes=0, n_layer=30, n_head=9, n_head_kv=3, n_embd=576,
        key_length=64, value_length=64, n_ctx_train=8192,
    )  # fmt: skip
    assert shape.weight_bytes == SMOLLM2.stat().st_size
    assert shape.kv_bytes_per_token("f16") == 30 * 3 * 128 * 2
    assert shape.kv_bytes_per_token("q8_0") == 30 * 3 * 128 * 34 / 32


def test_a_recurrent_model_takes_memory_for_slots_and_none_for_tokens(tmp_path: Path) -> None:
    write_mamba(tmp_path / "mamba.gguf")
    shape = Shape.of(read_header(tmp_path / "mamba.gguf"))
    assert shape.kv_bytes_per_token("f16") == 0
    # Two layers, 128 channels: the last 3 inputs of the convolution and 8 values of state.
    assert shape.state_bytes == 2 * 128 * (3 + 8) * 4
    assert choose_sizes(LlmOptions(), shape, 16 * GIB) == Sizes(4096, 8)
    large = dataclasses.replace(shape, state_bytes=GIB // 4, n_ctx_train=131_072)
    assert choose_sizes(LlmOptions(), large, 16 * GIB) == Sizes(8192, 4)
    one, two = (
        estimate_bytes(large, Sizes(512, n), "f16", n_batch=64, flash_attn=True) for n in (1, 2)
    )
    assert two - one == GIB // 4


def test_of_a_hybrid_model_only_the_attention_layers_count(tmp_path: Path) -> None:
    write_jamba(tmp_path / "jamba.gguf")
    shape = Shape.of(read_header(tmp_path / "jamba.gguf"))
    assert (shape.n_layer, shape.n_recurrent, shape.n_head_kv) == (3, 2, N_HEAD)
    assert shape.kv_bytes_per_token("f16") == 2 * N_EMBD * 2
    assert shape.state_bytes == 2 * 128 * (3 + 8) * 4


def test_defaults_follow_the_model_and_the_free_memory() -> None:
    small = Shape.of(read_header(SMOLLM2))
    assert choose_sizes(LlmOptions(), small, 16 * GIB) == Sizes(8192, 4)
    assert choose_sizes(LlmOptions(), EIGHT_B, 16 * GIB) == Sizes(4096, 2)
    tight = choose_sizes(LlmOptions(), EIGHT_B, 2 * GIB)
    assert tight.n_ctx * tight.n_slots * EIGHT_B.kv_bytes_per_token("f16") <= GIB // 2


def test_what_was_asked_for_is_taken() -> None:
    options = LlmOptions(ctx_size=65_536, slots=3)
    assert choose_sizes(options, EIGHT_B, GIB) == Sizes(65_536, 3)


def test_a_model_that_does_not_fit_is_refused_with_what_would() -> None:
    def check(available: int, **options: object) -> None:
        llm = LlmOptions(**options)  # type: ignore[arg-type]
        sizes = choose_sizes(llm, EIGHT_B, available)
        check_fits(
            "big.gguf", EIGHT_B, sizes, llm, n_batch=512, flash_attn=True, available_bytes=available
        )

    check(16 * GIB)
    with pytest.raises(ModelLoadError) as refused:
        check(12 * GIB, ctx_size=65_536, slots=2)
    for part in ("MiB too few", "--ctx-size 16384", "--force"):
        assert part in refused.value.message
    check(12 * GIB, ctx_size=65_536, slots=2, force=True)
    with pytest.raises(ModelLoadError, match="a smaller model is needed"):
        check(2 * GIB)


def test_without_flash_attention_the_scores_count() -> None:
    sizes = Sizes(8192, 1)
    plain = estimate_bytes(EIGHT_B, sizes, "f16", n_batch=512, flash_attn=False)
    flash = estimate_bytes(EIGHT_B, sizes, "f16", n_batch=512, flash_attn=True)
    assert plain - flash == 4 * 32 * 512 * 8192
