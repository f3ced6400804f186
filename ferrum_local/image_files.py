"""Image files to decoded images, for every runtime that sees. Needs Pillow."""

from __future__ import annotations

import io

from PIL import Image, ImageOps

from ferrum_local.errors import InvalidRequest

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000  # 150 MB once decoded; a small file can claim far more


def open_image(data: bytes, param: str) -> Image.Image:
    """Decode an image file, upright and in RGB; of an animation the first frame.

    :raises InvalidRequest: naming ``param``, for what is no image, is cut short or too large.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:  # known before any pixel is decoded
            raise Image.DecompressionBombError
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
    except Image.DecompressionBombError as error:
        raise InvalidRequest(
            f"{param}: expected an image of at most {MAX_PIXELS:,} pixels", param=param
        ) from error
    # Decoders of broken files raise whatever they meet.
    except Exception as error:
        reason = "cut short or damaged" if _is_known(data) else "not an image of a known format"
        raise InvalidRequest(
            f"{param}: {reason}; expected PNG, JPEG, WebP, GIF or BMP", param=param
        ) from error


def _is_known(data: bytes) -> bool:
    return data.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"RIFF"))
