"""A tiny vision projector (mmproj) as GGUF, of LLaVA's kind, and what comes out of it in numpy.

Its layers add nothing, so an image of one colour is easy to compute: patches, positions and the
projector's two matrices remain.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.engine.tiny_models import N_EMBD

WIDTH, SIZE, PATCH, N_FF, N_LAYER = 32, 28, 7, 48, 2
N_PATCHES = (SIZE // PATCH) ** 2
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.5, 0.2)
EPSILON = 1e-5

Array = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class TinyVision:
    weights: dict[str, Array]

    def states(self, rgb: tuple[int, int, int]) -> Array:
        """What a text model whose layers add nothing makes of an image of one colour."""
        w = self.weights
        colour = (np.array(rgb) / 255 - MEAN) / STD
        patch = w["v.patch_embd.weight"].sum(axis=(2, 3)) @ colour
        hidden = (patch + w["v.position_embd.weight"]) @ w["mm.0.weight"].T + w["mm.0.bias"]
        return normed(_gelu(hidden) @ w["mm.2.weight"].T + w["mm.2.bias"])


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def normed(rows: Array) -> Array:
    """The last norm of the text model."""
    scale: Array = np.sqrt((rows**2).mean(axis=-1, keepdims=True) + EPSILON)
    return rows / scale


def write_tiny_vision(path: Path, *, n_embd: int = N_EMBD, has_vision: bool = True) -> TinyVision:
    """Write one.

    :param n_embd: of the text model that it is for. :param has_vision: or else a broken one.
    """
    random = np.random.default_rng(5)
    weights: dict[str, Array] = {}

    def put(name: str, values: npt.NDArray[np.floating]) -> None:
        weights[name] = values.astype(np.float32)

    def matrix(name: str, *shape: int) -> None:
        put(name, random.normal(0.0, shape[-1] ** -0.5, shape))

    matrix("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    matrix("v.position_embd.weight", N_PATCHES, WIDTH)
    for i in range(N_LAYER):
        layer = f"v.blk.{i}"
        for name in ("attn_q", "attn_k", "attn_v"):
            matrix(f"{layer}.{name}.weight", WIDTH, WIDTH)
        matrix(f"{layer}.ffn_up.weight", N_FF, WIDTH)
        for name, shape in (("attn_out", (WIDTH, WIDTH)), ("ffn_down", (WIDTH, N_FF))):
            put(f"{layer}.{name}.weight", np.zeros(shape))
        for name in ("ln1", "ln2"):
            put(f"{layer}.{name}.weight", np.ones(WIDTH))
            put(f"{layer}.{name}.bias", np.zeros(WIDTH))
    matrix("mm.0.weight", n_embd, WIDTH)
    put("mm.0.bias", random.normal(0.0, 0.1, n_embd))
    matrix("mm.2.weight", n_embd, n_embd)
    put("mm.2.bias", random.normal(0.0, 0.1, n_embd))

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", has_vision)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "embedding_length": WIDTH, "feed_forward_length": N_FF, "block_count": N_LAYER,
        "projection_dim": n_embd, "image_size": SIZE, "patch_size": PATCH,
        "attention.head_count": 4,
    }  # fmt: skip
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", EPSILON)
    writer.add_array("clip.vision.image_mean", list(MEAN))
    writer.add_array("clip.vision.image_std", list(STD))
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyVision(weights)
