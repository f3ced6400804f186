"""Images in JSON bodies, as bytes. They are decoded, and judged, elsewhere."""

from __future__ import annotations

import base64
import binascii
import re

from ferrum_local.http.openai.validation import invalid

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[^,]*)?,", re.ASCII)
_MAX_SHOWN = 40


def read_image(text: str, path: str) -> bytes:
    """The file in ``text``, which is a data URL or plain base64.

    :param path: of the field, for the error.
    :raises ApiError: 400 when it is neither.
    """
    if not text:
        raise invalid(path, "expected an image, got an empty string")
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
