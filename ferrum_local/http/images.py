"""Images in JSON bodies, as bytes. They are decoded, and judged, elsewhere."""

from __future__ import annotations

import base64
import binascii
import os
import re

from ferrum_local.http.openai.validation import invalid

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[^,]*)?,", re.ASCII)
_IMAGE_PATH = re.compile(r"\.(png|jpe?g|webp|gif|bmp)$", re.IGNORECASE)
_MAX_SHOWN = 40


def read_image(text: str, path: str, *, allow_local_files: bool, max_bytes: int) -> bytes:
    """The file in ``text``: a data URL, plain base64, or a path on this machine if that is allowed.

    :param path: of the field, for the error.
    :param max_bytes: of a file on this machine.
    :raises ApiError: 400 when it is none of them.
    """
    if not text:
        raise invalid(path, "expected an image, got an empty string")
    if _looks_like_a_path(text):
        if not allow_local_files:
            raise invalid(path, "file paths are read only with --allow-local-files")
        return _read_file(text.removeprefix("file://"), path, max_bytes)
    if re.match(r"\w+://", text):
        raise invalid(path, "URLs are not fetched; send the image as a data URL or base64")
    header = _DATA_URL.match(text)
    if header is not None:
        if not (header[2] or "").endswith(";base64"):
            raise invalid(path, "expected a data URL with ;base64")
        text = text[header.end() :]
    try:
        # Clients break long lines; nothing else may be skipped.
        return base64.b64decode(re.sub(r"\s+", "", text), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(
            path, f"expected an image as a data URL or base64, got {text[:_MAX_SHOWN]!r}"
        ) from None


def _looks_like_a_path(text: str) -> bool:
    """Base64 has no dot; that of a JPEG begins with a slash."""
    return text.startswith("file://") or (len(text) < 4096 and _IMAGE_PATH.search(text) is not None)


def _read_file(file_path: str, path: str, max_bytes: int) -> bytes:
    try:
        # A pipe or a device would never end.
        if not os.path.isfile(file_path):
            raise invalid(path, f"no such file: {file_path[:200]!r}")
        with open(file_path, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise invalid(path, f"{file_path[:200]!r} cannot be read ({error.strerror})") from None
    if len(data) > max_bytes:
        raise invalid(path, f"expected a file of at most {max_bytes} bytes")
    return data
