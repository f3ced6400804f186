"""The ONNX graphs of a CLIP-family model: one for texts and one for images, or one for both."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

from ferrum_local.errors import GenerationFailed, ModelLoadError

logger = logging.getLogger(__name__)

Rows: TypeAlias = npt.NDArray[np.float32]
Feed: TypeAlias = Mapping[str, npt.NDArray[Any]]
Side: TypeAlias = Literal["text", "vision"]

INPUTS: dict[Side, tuple[str, ...]] = {
    "text": ("input_ids", "attention_mask", "position_ids"),
    "vision": ("pixel_values",),
}
_OUTPUTS: dict[Side, tuple[str, ...]] = {
    "text": ("text_embeds", "pooler_output"),
    "vision": ("image_embeds", "pooler_output"),
}
_TYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class Graph:
    """One ONNX file, loaded.

    :raises ModelLoadError: ONNX Runtime cannot load it.
    """

    def __init__(self, path: os.PathLike[str], n_threads: int) -> None:
        self.path = path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        # Idle threads that spin would take the cores from generation.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                os.fspath(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # each version raises its own
            reason = str(error).splitlines()[0]
            raise ModelLoadError(f"{path}: ONNX Runtime cannot load this ({reason})") from error
        self.types = {i.name: i.type for i in self._session.get_inputs()}
        self.outputs = [o.name for o in self._session.get_outputs()]

    def run(self, output: str, feed: Feed) -> Rows:
        """:raises GenerationFailed: ONNX Runtime could not."""
        typed = {name: value.astype(_TYPES[self.types[name]]) for name, value in feed.items()}
        try:
            (rows,) = self._session.run([output], typed)
        except Exception as error:
            logger.exception("ONNX Runtime failed")
            raise GenerationFailed("The model could not go on.") from error
        return np.asarray(rows, dtype=np.float32)


class GraphSide:
    """The part of a graph that makes vectors of texts, or of images.

    ``inputs``: those that ``run`` takes.

    :raises ModelLoadError: the graph has no such part.
    """

    def __init__(self, graph: Graph, side: Side) -> None:
        self._graph = graph
        self._others: Feed = {}
        wanted = INPUTS[side][0]
        if wanted not in graph.types:
            raise ModelLoadError(
                f"{graph.path}: has no input {wanted}, but {', '.join(graph.types)}"
            )
        known = {name for names in INPUTS.values() for name in names}
        for name, type_ in graph.types.items():
            if name not in known or type_ not in _TYPES:
                raise ModelLoadError(f"{graph.path}: input {name} ({type_}) is not known here")
        self.inputs: Sequence[str] = [name for name in INPUTS[side] if name in graph.types]
        names = _OUTPUTS[side]
        output = next((name for name in names if name in graph.outputs), None)
        if output is None:
            raise ModelLoadError(
                f"{graph.path}: has no output {' or '.join(names)}, but {', '.join(graph.outputs)}"
            )
        self._output = output

    def fill_others(self, feed: Feed) -> None:
        """Give the inputs of the graph's other side something to read.

        It changes nothing but the time: ONNX Runtime computes both sides of a graph.
        """
        self._others = {
            name: value
            for name, value in feed.items()
            if name in self._graph.types and name not in self.inputs
        }

    def run(self, feed: Feed) -> Rows:
        """One row for each item of the batch."""
        own = {name: feed[name] for name in self.inputs}
        return self._graph.run(self._output, {**self._others, **own})
