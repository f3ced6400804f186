"""Flash attention: asked for, demanded, or used where the CPU computes it fast."""

from __future__ import annotations

import pytest

from ferrum_local.llm import attention
from ferrum_local.llm.attention import choose_flash_attention
from ferrum_local.llm.memory import Shape
from ferrum_local.types import LlmOptions


def shape(key_length: int, value_length: int) -> Shape:
    return Shape(
        weight_bytes=1, n_layer=1, n_head=8, n_head_kv=8, n_embd=512,
        key_length=key_length, value_length=value_length, n_ctx_train=2048,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((64, 64), "auto"),
        ((128, 128), "auto"),
        ((96, 96), "off"),
        ((32, 32), "off"),
        ((192, 96), "off"),
        ((80, 128), "off"),
    ],
)
def test_a_cpu_has_flash_attention_for_heads_that_its_kernel_takes_in_whole_steps(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(attention, "gpu_devices", lambda: ())
    assert choose_flash_attention(LlmOptions(), shape(*lengths)) == expected
    monkeypatch.setattr(attention, "gpu_devices", lambda: ("a GPU",))
    assert choose_flash_attention(LlmOptions(), shape(*lengths)) == "auto"


@pytest.mark.parametrize("asked", ["on", "off"])
def test_what_was_asked_for_is_done(asked: str) -> None:
    for kv_type in ("f16", "q8_0"):
        options = LlmOptions(flash_attn=asked, kv_type=kv_type)
        assert choose_flash_attention(options, shape(96, 96)) == asked


def test_bf16_which_is_not_computed_in_tiles_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "gpu_devices", lambda: ())
    assert choose_flash_attention(LlmOptions(kv_type="bf16"), shape(64, 64)) == "off"


def test_a_quantised_cache_has_it_whatever_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "gpu_devices", lambda: ())
    assert choose_flash_attention(LlmOptions(kv_type="q8_0"), shape(96, 96)) == "on"
