"""A tiny Piper voice with two speakers: Ann's samples are all 1, Bob's are all -1."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SPEAKERS = {"ann": 0, "bob": 1}
_HOP = 256  # samples for each phoneme id
_FILE_BYTES = 70_000  # smaller files are refused as no voice


def write_tiny_voice(path: Path, *, like: Path) -> None:
    """:param like: a real voice, whose phonemes are taken."""
    constants = {"zero": np.float32(0), "minus_two": np.float32(-2), "one": np.float32(1),
                 "last": np.array([2]), "each": np.array([1, 1, _HOP]),
                 "flat": np.array([1, 1, 1, -1])}  # fmt: skip
    nodes = [
        ("Cast", ["input"], "ids"), ("Mul", ["ids", "zero"], "zeros"),
        ("Cast", ["sid"], "speaker"), ("Mul", ["speaker", "minus_two"], "twice"),
        ("Add", ["twice", "one"], "sign"), ("Add", ["zeros", "sign"], "signs"),
        ("Unsqueeze", ["signs", "last"], "column"), ("Expand", ["column", "each"], "rows"),
        ("Reshape", ["rows", "flat"], "output"),
    ]  # fmt: skip
    options = {"Cast": {"to": TensorProto.FLOAT}}
    graph = helper.make_graph(
        [
            helper.make_node(kind, inputs, [output], **options.get(kind, {}))
            for kind, inputs, output in nodes
        ],
        "two speakers",
        [
            helper.make_tensor_value_info("input", TensorProto.INT64, [1, "n"]),
            helper.make_tensor_value_info("input_lengths", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("sid", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, 1, "n_samples"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        doc_string="." * _FILE_BYTES,
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), str(path))
    config = json.loads(Path(f"{like}.json").read_text("utf-8"))
    config |= {"num_speakers": len(SPEAKERS), "speaker_id_map": SPEAKERS}
    Path(f"{path}.json").write_text(json.dumps(config), "utf-8")
