"""Images that requests carry or name, as bytes. They are decoded, and judged, elsewhere."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Callable

from ferrum_local.errors import Cancelled
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.media_files import SCHEME as FILE_SCHEME
from ferrum_local.http.media_files import read_any_file, read_media_file
from ferrum_local.http.openai.validation import invalid
from ferrum_local.http.remote_media import MediaRefused, RemoteMedia

MAX_REMOTE_IMAGES = 32  # of one request: they are fetched one after the other
REMOTE_TIME_S = 60.0  # for all of them
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[^,]*)?,", re.ASCII)
_IMAGE_PATH = re.compile(r"\.(png|jpe?g|webp|gif|bmp)$", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_ANY_URL = re.compile(r"\w[\w.+-]*://")
_MAX_SHOWN = 40


class ImageSource:
    """Reads the images of one request: data URLs, base64, and what else the server allows.

    :param remote: fetches URLs; None: that is not allowed.
    :param is_gone: whether the client left; nothing more is fetched then.
    """

    def __init__(
        self,
        config: HttpConfig,
        remote: RemoteMedia | None,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._remote = remote
        self._is_gone = is_gone
        self._n_fetched = 0
        self._bytes_left = config.max_body_bytes
        self._fetch_until_s = time.monotonic() + REMOTE_TIME_S

    def read(self, text: str, path: str) -> bytes:
        """The image file that ``text`` holds or names.

        :param path: of the field, for the error.
        :raises ApiError: 400 when it is none, or is not to be had.
        :raises Cancelled: the client left.
        """
        if not text:
            raise invalid(path, "expected an image, got an empty string")
        if _WEB_URL.match(text):
            return self._fetch(text, path)
        if _looks_like_a_path(text):
            return self._read_file(text, path)
        if _ANY_URL.match(text):
            raise invalid(path, "URLs of this kind are not read; send a data URL or base64")
        return _decode(text, path)

    def _fetch(self, url: str, path: str) -> bytes:
        if self._remote is None:
            raise invalid(
                path,
                "URLs are fetched only with --allow-remote-media; send the image as a data URL "
                "or base64",
            )
        if self._n_fetched >= MAX_REMOTE_IMAGES:
            raise invalid(path, f"expected at most {MAX_REMOTE_IMAGES} URLs in one request")
        if time.monotonic() > self._fetch_until_s:
            raise invalid(path, f"the URLs of one request took longer than {REMOTE_TIME_S:g} s")
        if self._is_gone():
            raise Cancelled("The client left.")
        self._n_fetched += 1
        try:
            data = self._remote.fetch(url, max_bytes=self._bytes_left)
        except MediaRefused as refused:
            raise invalid(path, f"this URL {refused}") from None
        self._bytes_left -= len(data)
        return data

    def _read_file(self, text: str, path: str) -> bytes:
        is_url = text[: len(FILE_SCHEME)].lower() == FILE_SCHEME
        is_anywhere = self._config.allow_local_files
        if not (is_anywhere or (is_url and self._config.media_dir is not None)):
            raise invalid(
                path, "files are read only by their path with --allow-local-files, or by a "
                "file:// URL with --media-dir",
            )  # fmt: skip
        max_bytes = self._config.max_body_bytes
        try:
            if not is_url:
                return read_any_file(text, max_bytes)
            url = FILE_SCHEME + text[len(FILE_SCHEME) :]
            return read_media_file(url, None if is_anywhere else self._config.media_dir, max_bytes)
        except MediaRefused as refused:
            raise invalid(path, f"this file {refused}") from None


def _decode(text: str, path: str) -> bytes:
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
    return text[: len(FILE_SCHEME)].lower() == FILE_SCHEME or (
        len(text) < 4096 and "://" not in text and _IMAGE_PATH.search(text) is not None
    )
