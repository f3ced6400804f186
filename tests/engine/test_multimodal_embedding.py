"""Embedding models with a vision projector, beside answers that numpy computed."""

from __future__ import annotations

import io
import logging
import math
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFReader
from PIL import Image

from ferrum_local.cli.serve import check_models
from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import FerrumError, InvalidRequest, ModelLoadError
from ferrum_local.types import EmbeddingRequest, ImageInput, LlmOptions, ModelSpec
from tests.engine.tiny_bert import write_tiny_bert
from tests.engine.tiny_models import N_EMBD, write_llama
from tests.engine.tiny_vision import N_PATCHES, TinyVision, normed, write_tiny_vision
from tests.vectors import cosine

RED, BLUE = (200, 30, 10), (10, 20, 220)
POOLING = {
    "mean": gguf.PoolingType.MEAN,
    "cls": gguf.PoolingType.CLS,
    "last": gguf.PoolingType.LAST,
}
BOS = 1


def image(colour: tuple[int, int, int], size: tuple[int, int] = (40, 40)) -> ImageInput:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return ImageInput(buffer.getvalue())


def vectors(engine: LocalEngine, *inputs: object, **more: object) -> list[array[float]]:
    request = EmbeddingRequest(id="e", model_id="", inputs=inputs, **more)  # type: ignore[arg-type]
    return list(engine.embed(request).vectors)


Load = Callable[..., LocalEngine]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """Loads engines that live as long as this file's tests."""
    engines: list[LocalEngine] = []

    def run(model: Path, projector: Path | None = None, **options: object) -> LocalEngine:
        spec = ModelSpec(
            id="seeing",
            path=str(model),
            kind="embedding",
            mmproj=None if projector is None else str(projector),
        )
        check_models((spec,))
        engine = LocalEngine([spec], LlmOptions(threads=1, **options))  # type: ignore[arg-type]
        engine.load()
        engines.append(engine)
        return engine

    yield run
    for engine in engines:
        engine.close()


class Files:
    """A projector, and text models for it: with layers that do something, and without."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.projector = root / "mmproj.gguf"
        self.model = root / "model.gguf"
        self.tiny: TinyVision = write_tiny_vision(self.projector)
        write_llama(self.model)

    def plain(self, pooling: str) -> Path:
        path = self.root / f"{pooling}.gguf"
        write_llama(path, pooling=POOLING[pooling], passes_through=True)
        return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def seeing(load: Load, files: Files) -> LocalEngine:
    return load(files.model, files.projector)


@pytest.mark.parametrize("pooling", POOLING)
def test_an_image_has_the_vector_that_numpy_computes(
    load: Load, files: Files, pooling: str
) -> None:
    path = files.plain(pooling)
    engine = load(path, files.projector)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
    begin = normed(np.asarray(tensors["token_embd.weight"][BOS], dtype=np.float32))
    for colour in (RED, BLUE):
        states = np.vstack([begin, files.tiny.states(colour)])
        assert len(states) == 1 + N_PATCHES
        expected = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[pooling]
        (found,) = vectors(engine, image(colour))
        assert cosine(found, expected.tolist()) > 0.999
        assert math.isclose(math.hypot(*found), 1.0, rel_tol=1e-5)


def test_images_and_texts_of_one_request_keep_their_order(seeing: LocalEngine) -> None:
    inputs = (image(RED), "a text", image(BLUE, (20, 30)), "another", image(RED))
    request = EmbeddingRequest(id="e", model_id="", inputs=inputs)
    response = seeing.embed(request)
    # One for each letter, and the marker of the beginning; images count none.
    assert response.prompt_tokens == 1 + len("a text") + 1 + len("another")
    for found, item in zip(response.vectors, request.inputs, strict=True):
        assert cosine(found, vectors(seeing, item)[0]) > 0.9999
    red, _, blue, *_ = response.vectors
    assert cosine(red, response.vectors[4]) > 0.9999 > cosine(red, blue)


def test_texts_have_the_vectors_that_they_have_without_a_projector(
    load: Load, files: Files, seeing: LocalEngine
) -> None:
    alone = load(files.model)
    for text in ("hello", "a longer text, of some words"):
        assert cosine(vectors(alone, text)[0], vectors(seeing, text)[0]) > 0.9999
    with pytest.raises(InvalidRequest, match=r"input\[0\].image.*embeds text only"):
        vectors(alone, image(RED))
    kinds = [engine.status().models[0].capabilities for engine in (alone, seeing)]
    assert kinds == [("embeddings",), ("embeddings", "image-embeddings")]


def test_dimensions_cut_the_vectors_of_images_too(seeing: LocalEngine) -> None:
    whole, cut = vectors(seeing, image(RED))[0], vectors(seeing, image(RED), dimensions=16)[0]
    assert len(cut) == 16 and cosine(cut, whole[:16]) > 0.9999
    with pytest.raises(InvalidRequest, match="dimensions"):
        vectors(seeing, image(RED), dimensions=N_EMBD + 1)


def test_vis_02_what_is_no_image_or_a_bad_text_is_named_by_its_place(seeing: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="not an image") as caught:
        vectors(seeing, "a", image(RED), ImageInput(b"hello"))
    assert caught.value.param == "input[2].image"
    with pytest.raises(InvalidRequest, match=r"input\[1\]") as caught:
        vectors(seeing, image(RED), (9999,))
    assert caught.value.param == "input[1][0]"
    assert vectors(seeing, image(RED))


def test_an_image_of_too_many_tokens_names_both_numbers(load: Load, files: Files) -> None:
    engine = load(files.model, files.projector, embedding_ctx_size=16)
    with pytest.raises(InvalidRequest, match="17 tokens and the model reads at most 16"):
        vectors(engine, image(RED))


def test_a_client_that_left_ends_the_request(seeing: LocalEngine) -> None:
    request = EmbeddingRequest(id="e", model_id="", inputs=(image(RED),))
    with pytest.raises(FerrumError, match="left"):
        seeing.embed(request, is_abandoned=lambda: True)
    assert seeing.status().active_requests == 0


def test_nothing_is_logged_for_an_image(
    seeing: LocalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        vectors(seeing, image(RED))
    assert caplog.records == []


def test_files_that_do_not_go_together_are_told_at_load(
    load: Load, files: Files, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="model.gguf: is not a vision projector"):
        load(files.model, files.model)
    with pytest.raises(ModelLoadError, match="no such file"):
        load(files.model, tmp_path / "missing.gguf")
    write_tiny_vision(tmp_path / "deaf.gguf", has_vision=False)
    with pytest.raises(ModelLoadError, match="without an encoder for images"):
        load(files.model, tmp_path / "deaf.gguf")
    write_tiny_vision(tmp_path / "wide.gguf", n_embd=2 * N_EMBD)
    with pytest.raises(ModelLoadError, match="wide.gguf: cannot be used with .*model.gguf"):
        load(files.model, tmp_path / "wide.gguf")
    for pooling, reason in (("mean", "an encoder of texts alone"), ("rank", "a rerank model")):
        write_tiny_bert(tmp_path / f"{pooling}.gguf", pooling=pooling)
        with pytest.raises(ModelLoadError, match=reason):
            load(tmp_path / f"{pooling}.gguf", files.projector)
