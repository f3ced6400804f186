"""CLIP-family models: files found, images prepared, vectors beside numpy's."""

from __future__ import annotations

import io
import json
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import ContextOverflow, InvalidRequest, ModelLoadError
from ferrum_local.image_files import MAX_PIXELS, open_image
from ferrum_local.types import EmbeddingRequest, ImageInput, LlmOptions, ModelSpec, RerankRequest
from ferrum_local.vision.images import Preprocessor
from ferrum_local.vision.layout import find_clip_files
from tests.tiny_clip import MAX_TOKENS, SIZE, TinyClip, write_tiny_clip

Colour = tuple[int, int, int]
RED, BLUE, GREY = (200, 30, 10), (10, 20, 220), (128, 128, 128)


def image_file(
    colour: Colour = RED, size: tuple[int, int] = (12, 8), format: str = "PNG", **options: object
) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, format, **options)
    return buffer.getvalue()


def load(root: Path) -> LocalEngine:
    engine = LocalEngine(
        [ModelSpec(id="clip", path=str(root), kind="image-embedding")], LlmOptions(threads=1)
    )
    engine.load()
    return engine


def vectors(engine: LocalEngine, *inputs: object, **more: object) -> list[Sequence[float]]:
    request = EmbeddingRequest(id="e", model_id="", inputs=inputs, **more)  # type: ignore[arg-type]
    return list(engine.embed(request).vectors)


def assert_close(found: Sequence[float], expected: Sequence[float], least: float = 0.9999) -> None:
    cosine = float(np.dot(np.asarray(found), np.asarray(expected)))
    assert cosine >= least
    assert math.isclose(math.hypot(*found), 1.0, rel_tol=1e-5)


@pytest.fixture
def clip(tmp_path: Path) -> tuple[LocalEngine, TinyClip]:
    tiny = write_tiny_clip(tmp_path)
    return load(tmp_path), tiny


# -- vectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"graphs": "onnx"},
        {"graphs": "onnx", "suffix": "_quantized"},
        {"graphs": "onnx", "suffix": "_fp16", "half": True},
        {"graphs": "onnx", "siglip": True},
        {"single": True},
        {"graphs": "onnx", "suffix": "_quantized", "single": True},
        {"single": True, "siglip": True},
        {"suffix": "_fp16", "single": True, "half": True},
    ],
    ids=lambda layout: "-".join(f"{name}={value}" for name, value in layout.items()) or "plain",
)
def test_texts_and_images_get_the_vectors_of_their_graphs(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    tiny = write_tiny_clip(tmp_path, **layout)
    engine = load(tmp_path)
    length = MAX_TOKENS if layout.get("siglip") else None
    image, short, long = vectors(engine, ImageInput(image_file(RED)), "a cat", "a red square a cat")
    assert_close(image, tiny.image(RED).tolist())
    assert_close(short, tiny.text("a", "cat", padded_to=length).tolist())
    words = ("a", "red", "square", "a", "cat")
    assert_close(long, tiny.text(*words, padded_to=length).tolist())


def test_a_split_export_is_taken_before_the_whole_graph(tmp_path: Path) -> None:
    write_tiny_clip(tmp_path, graphs="onnx")
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"not read")
    files = find_clip_files(str(tmp_path))
    assert (files.text_graph.name, files.vision_graph.name) == (
        "text_model.onnx", "vision_model.onnx",
    )  # fmt: skip


def test_siglip_reads_small_letters_and_its_padding(tmp_path: Path) -> None:
    tiny = write_tiny_clip(tmp_path, siglip=True)
    engine = load(tmp_path)
    (found,) = vectors(engine, "A CAT")
    assert_close(found, tiny.text("a", "cat", padded_to=MAX_TOKENS).tolist())
    response = engine.embed(EmbeddingRequest(id="e", model_id="", inputs=("a cat",)))
    assert response.prompt_tokens == 4


def test_siglip_with_a_mask_sees_its_padding_too(tmp_path: Path) -> None:
    tiny = write_tiny_clip(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}', "utf-8")
    (found,) = vectors(load(tmp_path), "a cat")
    assert_close(found, tiny.text("a", "cat", padded_to=MAX_TOKENS).tolist())


@pytest.mark.parametrize(("model_type", "longest"), [("clip", 77), ("siglip", 64)])
def test_a_config_that_leaves_the_length_out_means_the_familys(
    tmp_path: Path, model_type: str, longest: int
) -> None:
    write_tiny_clip(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), "utf-8")
    (tmp_path / "tokenizer_config.json").unlink()
    assert find_clip_files(str(tmp_path)).max_tokens == longest


def test_the_config_of_the_whole_processor_will_do(tmp_path: Path) -> None:
    tiny = write_tiny_clip(tmp_path)
    old = tmp_path / "preprocessor_config.json"
    whole = {"image_processor": json.loads(old.read_text("utf-8"))}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole), "utf-8")
    old.unlink()
    (found,) = vectors(load(tmp_path), ImageInput(image_file()))
    assert_close(found, tiny.image(RED).tolist())


def test_many_inputs_keep_their_order(clip: tuple[LocalEngine, TinyClip]) -> None:
    engine, tiny = clip
    colours = [(i * 6, 255 - i * 6, i) for i in range(40)]
    inputs: list[object] = [ImageInput(image_file(colour)) for colour in colours]
    inputs[20:20] = ["a cat"]
    found = vectors(engine, *inputs)
    assert_close(found.pop(20), tiny.text("a", "cat").tolist())
    for vector, colour in zip(found, colours, strict=True):
        assert_close(vector, tiny.image(colour).tolist())


def test_only_text_counts_as_tokens_and_dimensions_cut(
    clip: tuple[LocalEngine, TinyClip],
) -> None:
    engine, tiny = clip
    request = EmbeddingRequest(
        id="e", model_id="clip", inputs=(ImageInput(image_file()), "a cat"), dimensions=3
    )
    response = engine.embed(request)
    assert response.prompt_tokens == 4
    expected = tiny.text("a", "cat")[:3]
    assert_close(response.vectors[1], (expected / np.linalg.norm(expected)).tolist())
    with pytest.raises(InvalidRequest, match="vectors of 8 numbers, got 9"):
        vectors(engine, "a cat", dimensions=9)


def test_a_long_text_is_refused_or_cut_before_its_last_marker(
    clip: tuple[LocalEngine, TinyClip],
) -> None:
    engine, tiny = clip
    with pytest.raises(ContextOverflow, match=rf"input\[1\].*22 tokens.*at most {MAX_TOKENS}"):
        vectors(engine, "a", "cat " * 20)
    (cut,) = vectors(engine, "cat " * 20, truncate=True)
    assert_close(cut, tiny.text(*["cat"] * (MAX_TOKENS - 2)).tolist())


def test_documents_can_be_ranked_with_it(clip: tuple[LocalEngine, TinyClip]) -> None:
    engine, tiny = clip
    response = engine.rerank(
        RerankRequest(id="r", model_id="clip", query="a cat", documents=("blue", "a cat"))
    )
    assert response.method == "embedding-similarity"
    expected = float(tiny.text("a", "cat") @ tiny.text("blue"))
    assert response.scores == pytest.approx((expected, 1.0), abs=1e-4)


def test_the_seeds_methods_take_one_text_or_image(clip: tuple[LocalEngine, TinyClip]) -> None:
    engine, tiny = clip
    assert_close(engine.embed_text("a cat"), tiny.text("a", "cat").tolist())
    assert_close(engine.embed_image(image_file(BLUE)), tiny.image(BLUE).tolist())
    (info,) = engine.status().models
    assert (info.kind, info.capabilities) == ("embedding", ("embeddings", "image-embeddings"))


# -- images ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_vis_02_each_format_is_read(clip: tuple[LocalEngine, TinyClip], format: str) -> None:
    engine, tiny = clip
    (found,) = vectors(engine, ImageInput(image_file(RED, (16, 16), format)))
    assert_close(found, tiny.image(RED).tolist(), 0.999)


def claims_to_be_huge() -> bytes:
    """A PNG of a few bytes whose header says 60,000 x 60,000."""
    data = bytearray(image_file(size=(1, 1)))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image"),
        (b"hello world", "not an image"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (image_file(size=(64, 64), format="PNG")[:-40], "damaged"),
        (image_file(size=(256, 256), format="JPEG")[:400], "damaged"),
        (b"%PDF-1.4 ", "not an image"),
        (claims_to_be_huge(), "at most"),
    ],
    ids=["empty", "text", "header only", "cut PNG", "cut JPEG", "PDF", "bomb"],
)
def test_vis_02_what_is_no_whole_image_names_its_input(
    clip: tuple[LocalEngine, TinyClip], data: bytes, reason: str
) -> None:
    engine, _ = clip
    with pytest.raises(InvalidRequest, match=reason) as caught:
        vectors(engine, "a cat", ImageInput(data))
    assert caught.value.param == "input[1].image"
    assert vectors(engine, ImageInput(image_file()))


def test_other_formats_of_the_library_stay_closed() -> None:
    with pytest.raises(InvalidRequest, match="not an image of a known format"):
        open_image(image_file(format="TIFF"), "x")


def test_the_limit_of_pixels_is_below_what_the_library_warns_of() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert MAX_PIXELS < Image.MAX_IMAGE_PIXELS


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (2, 1))
    image.putpixel((0, 0), RED)
    image.putpixel((1, 0), BLUE)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    upright = open_image(buffer.getvalue(), "x")
    assert upright.size == (1, 2)
    assert (upright.getpixel((0, 0)), upright.getpixel((0, 1))) == (RED, BLUE)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3), GREY).convert(mode).save(buffer, "PNG")
    assert open_image(buffer.getvalue(), "x").mode == "RGB"


def config(**changes: object) -> dict[str, object]:
    return {
        "size": {"shortest_edge": SIZE}, "crop_size": SIZE, "do_center_crop": True,
        "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], **changes,
    }  # fmt: skip


def test_the_short_edge_is_scaled_and_the_middle_taken() -> None:
    image = Image.new("RGB", (4 * SIZE, SIZE), RED)
    image.paste(Image.new("RGB", (SIZE, SIZE), BLUE), (int(1.5 * SIZE), 0))
    pixels = Preprocessor(config()).pixels(image)
    assert pixels.shape == (3, SIZE, SIZE)
    for channel, value in enumerate(BLUE):
        assert pixels[channel] == pytest.approx(value / 255)


def test_a_fixed_size_stretches_and_a_small_image_gets_black_edges() -> None:
    image = Image.new("RGB", (9, 5), GREY)
    stretch = config(size={"height": 3, "width": 7}, do_center_crop=False)
    assert Preprocessor(stretch).pixels(image).shape == (3, 3, 7)
    edged = Preprocessor(config(do_resize=False, crop_size=9)).pixels(image)
    assert edged[0, 0].max() == 0 and edged[0, 4].min() == pytest.approx(GREY[0] / 255)


def test_numbers_are_scaled_and_normalised_as_configured() -> None:
    image = Image.new("RGB", (SIZE, SIZE), (255, 51, 0))
    normal = Preprocessor(config(image_mean=[0.5, 0.1, 0.2], image_std=[0.5, 0.1, 0.4]))
    assert normal.pixels(image)[:, 0, 0] == pytest.approx([1.0, 1.0, -0.5])
    raw = Preprocessor(config(do_rescale=False, do_normalize=False))
    assert raw.pixels(image)[:, 0, 0] == pytest.approx([255, 51, 0])


@pytest.mark.parametrize(
    "broken",
    [{"size": {}}, {"image_mean": [1, 2]}, {"image_std": "x"}, {"resample": 99}, {"size": None}],
    ids=str,
)
def test_a_config_that_cannot_be_followed_is_told_at_load(broken: dict[str, object]) -> None:
    with pytest.raises(ModelLoadError, match="preprocessor_config.json"):
        Preprocessor(config(**broken))


# -- directories -------------------------------------------------------------------------------


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def run(root: Path) -> None:
        (root / name).write_text(text, "utf-8")

    return run


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (remove("tokenizer.json"), "no tokenizer.json"),
        (remove("preprocessor_config.json"), "no preprocessor_config.json"),
        (remove("vision_model.onnx"), "no vision_model.onnx"),
        (remove("text_model.onnx"), "no text_model.onnx"),
        (write("preprocessor_config.json", "{"), "preprocessor_config.json: cannot be read"),
        (write("config.json", "[]"), "config.json: expected a JSON object"),
    ],
)
def test_a_directory_that_is_not_whole_is_told_before_anything_is_loaded(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    write_tiny_clip(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelLoadError, match=reason):
        find_clip_files(str(tmp_path))


def test_a_missing_directory_is_told() -> None:
    with pytest.raises(ModelLoadError, match="no such directory"):
        find_clip_files("/nowhere/at/all")


def test_optional_files_may_be_missing(tmp_path: Path) -> None:
    write_tiny_clip(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": 10**30, "pad_token": {"content": "<pad>"}}), "utf-8"
    )
    files = find_clip_files(str(tmp_path))
    assert (files.max_tokens, files.pads_fully, files.pad_token) == (77, False, "<pad>")


@pytest.mark.parametrize("name", ["text_model.onnx", "vision_model.onnx", "tokenizer.json"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    write_tiny_clip(tmp_path)
    (tmp_path / name).write_bytes(b"nothing useful")
    with pytest.raises(ModelLoadError, match=name) as caught:
        load(tmp_path)
    assert "\n" not in caught.value.message


def test_graphs_that_were_swapped_are_told(tmp_path: Path) -> None:
    write_tiny_clip(tmp_path)
    (tmp_path / "text_model.onnx").write_bytes((tmp_path / "vision_model.onnx").read_bytes())
    with pytest.raises(ModelLoadError, match="has no input input_ids"):
        load(tmp_path)
