"""Images to the numbers that a CLIP-family model reads, as its preprocessor config says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ferrum_local.errors import ModelLoadError

Pixels = npt.NDArray[np.float32]


class Preprocessor:
    """Resize, crop, rescale and normalise, in Hugging Face's order.

    :param config: the content of preprocessor_config.json.
    :raises ModelLoadError: it asks for something that is not known here.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        try:
            self._size = _size(config["size"]) if config.get("do_resize", True) else None
            self._crop = (
                _size(config["crop_size"], square=True)
                if config.get("do_center_crop", "crop_size" in config)
                else None
            )
            self._resample = Image.Resampling(config.get("resample", Image.Resampling.BICUBIC))
            scale = config.get("rescale_factor", 1 / 255)
            self._scale = float(scale) if config.get("do_rescale", True) else 1.0
            normalizes = config.get("do_normalize", True)
            self._mean = _channels(config["image_mean"] if normalizes else 0.0)
            self._std = _channels(config["image_std"] if normalizes else 1.0)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelLoadError(f"preprocessor_config.json: {error!r} cannot be used") from error

    def pixels(self, image: Image.Image) -> Pixels:
        """Shape (3, height, width)."""
        if self._size is not None:
            image = image.resize(_resized(image.size, self._size), self._resample)
        if self._crop is not None:
            image = _center_crop(image, self._crop)
        values = np.asarray(image, dtype=np.float32) * np.float32(self._scale)
        values = (values - self._mean) / self._std
        return np.ascontiguousarray(values.transpose(2, 0, 1))


# (width, height), or one number: the length of the shorter edge.
_Size = tuple[int, int] | int


def _size(value: Any, *, square: bool = False) -> _Size:
    if isinstance(value, int):
        return (value, value) if square else value
    if "shortest_edge" in value:
        return int(value["shortest_edge"])
    return int(value["width"]), int(value["height"])


def _channels(value: Any) -> Pixels:
    channels = np.asarray(value, dtype=np.float32)
    if channels.shape not in ((), (3,)):
        raise ValueError(f"expected 3 channels, got {value}")
    return channels


def _resized(old: tuple[int, int], size: _Size) -> tuple[int, int]:
    if isinstance(size, tuple):
        return size
    width, height = old
    short, long = min(old), max(old)
    scaled = max(1, int(size * long / short))
    return (size, scaled) if width <= height else (scaled, size)


def _center_crop(image: Image.Image, size: _Size) -> Image.Image:
    """A smaller image gets black edges."""
    width, height = size if isinstance(size, tuple) else (size, size)
    left = math.floor((image.width - width) / 2)
    top = math.floor((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))
