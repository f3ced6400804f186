"""A tiny CLIP as ONNX, in the layouts of Hugging Face's exports, whose answers are easy to compute.

An image's vector is its mean colour (after preprocessing) times a matrix, a text's is the mean of
its tokens' rows, so numpy needs a line for each.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

Array = npt.NDArray[np.float32]
WIDTH, SIZE, MAX_TOKENS = 8, 4, 16
WORDS = ("<pad>", "<start>", "<end>", "<unk>", "a", "red", "green", "blue", "square", "cat")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


@dataclasses.dataclass(frozen=True)
class TinyClip:
    colours: Array  # (3, WIDTH)
    words: Array  # (words, WIDTH)

    def image(self, mean_rgb: tuple[float, float, float]) -> Array:
        """Of an image whose visible part has this mean colour, from 0 to 255."""
        values = (np.array(mean_rgb) / 255 - MEAN) / STD
        vector: Array = values @ self.colours
        return vector / np.linalg.norm(vector)

    def text(self, *words: str, padded_to: int | None = None) -> Array:
        ids = [1, *(WORDS.index(word) for word in words), 2]
        ids += [0] * ((padded_to or len(ids)) - len(ids))
        vector: Array = self.words[ids].mean(0)
        return vector / np.linalg.norm(vector)


def write_tiny_clip(
    root: Path,
    *,
    graphs: str = ".",
    suffix: str = "",
    siglip: bool = False,
    single: bool = False,
    half: bool = False,
    preprocessor: dict[str, object] | None = None,
) -> TinyClip:
    """Write one.

    :param graphs: directory of the graphs below ``root``. :param suffix: of their names.
    :param siglip: as SigLIP is exported: no mask, other output names, full padding.
    :param single: one graph of both sides, whose other outputs are their products.
    :param half: pixels of 16 bits.
    """
    random = np.random.default_rng(3)
    colours = random.normal(size=(3, WIDTH)).astype(np.float32)
    words = random.normal(size=(len(WORDS), WIDTH)).astype(np.float32)
    place = root / graphs
    place.mkdir(parents=True, exist_ok=True)
    names = ("pooler_output", "pooler_output") if siglip else ("image_embeds", "text_embeds")
    if single:
        names = ("image_embeds", "text_embeds")
    vision = _vision(colours, names[0], half)
    text = _text(words, names[1], has_mask=not siglip)
    if single:
        onnx.save(_model(vision, text), place / f"model{suffix}.onnx")
    else:
        onnx.save(_model(vision), place / f"vision_model{suffix}.onnx")
        onnx.save(_model(text), place / f"text_model{suffix}.onnx")

    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 2)]
    )
    tokenizer.save(str(root / "tokenizer.json"))
    files: dict[str, dict[str, object]] = {
        "config.json": {
            "model_type": "siglip" if siglip else "clip",
            "text_config": {"max_position_embeddings": MAX_TOKENS},
        },
        "tokenizer_config.json": {"model_max_length": MAX_TOKENS, "pad_token": "<pad>"},
        "preprocessor_config.json": {
            "do_resize": True, "size": {"shortest_edge": SIZE}, "resample": 3,
            "do_center_crop": True, "crop_size": {"height": SIZE, "width": SIZE},
            "do_rescale": True, "rescale_factor": 1 / 255,
            "do_normalize": True, "image_mean": MEAN, "image_std": STD,
            **(preprocessor or {}),
        },
    }  # fmt: skip
    for name, content in files.items():
        (root / name).write_text(json.dumps(content), "utf-8")
    return TinyClip(colours, words)


class _Side(NamedTuple):
    nodes: list[onnx.NodeProto]
    inputs: list[onnx.ValueInfoProto]
    output: str
    constants: list[onnx.TensorProto]


def _vision(colours: Array, output: str, half: bool) -> _Side:
    """:param half: pixels come with 16 bits."""
    nodes = [
        helper.make_node("Cast", ["pixel_values"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "edges"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "colours"], [output]),
    ]
    constants = [
        numpy_helper.from_array(np.array([2, 3], dtype=np.int64), "edges"),
        numpy_helper.from_array(colours, "colours"),
    ]
    type_ = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    shape = ["image_batch_size", 3, "height", "width"]
    pixels = helper.make_tensor_value_info("pixel_values", type_, shape)
    return _Side(nodes, [pixels], output, constants)


def _text(words: Array, output: str, *, has_mask: bool) -> _Side:
    shape = ["text_batch_size", "length"]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape)
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape)
    constants = [
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axes"),
        numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
        numpy_helper.from_array(words, "words"),
    ]
    nodes = [helper.make_node("Gather", ["words", "input_ids"], ["rows"])]
    if not has_mask:
        nodes.append(helper.make_node("ReduceMean", ["rows", "axes"], [output], keepdims=0))
        return _Side(nodes, [ids], output, constants)
    nodes += [
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["columns"]),
        helper.make_node("Mul", ["rows", "columns"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "axes"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "axes"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], [output]),
    ]
    return _Side(nodes, [mask, ids], output, constants)


def _model(*sides: _Side) -> onnx.ModelProto:
    """A graph of one side, or of both with their products as first outputs, as the whole model
    is exported."""
    nodes = [node for side in sides for node in side.nodes]
    outputs = [
        helper.make_tensor_value_info(side.output, TensorProto.FLOAT, [None, WIDTH])
        for side in sides
    ]
    if len(sides) > 1:
        images, texts = (side.output for side in sides)
        nodes.append(helper.make_node("Transpose", [images], ["columns_of_images"]))
        nodes.append(helper.make_node("MatMul", [texts, "columns_of_images"], ["logits_per_text"]))
        outputs.insert(
            0, helper.make_tensor_value_info("logits_per_text", TensorProto.FLOAT, [None, None])
        )
    graph = helper.make_graph(
        nodes,
        "tiny",
        [value for side in reversed(sides) for value in side.inputs],
        outputs,
        [constant for side in sides for constant in side.constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
