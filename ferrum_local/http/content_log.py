"""What was asked and answered, in the log: only with ``--log-content``."""

from __future__ import annotations

import logging

log = logging.getLogger("ferrum_local.content")

MAX_BYTES = 65_536  # of each half; more would be a recording or a book


class _Half:
    """A body as it passes, up to a bound."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._n_bytes = 0

    def add(self, data: bytes) -> None:
        self._n_bytes += len(data)
        self._kept += data[: MAX_BYTES - len(self._kept)]

    def text(self) -> str:
        kept = bytes(self._kept)
        n_more = self._n_bytes - len(kept)
        try:
            # A bound may fall within a character.
            text = kept.decode("utf-8", "strict" if n_more == 0 else "ignore")
        except UnicodeDecodeError:
            return f"({self._n_bytes} bytes that are no text)"
        if "\0" in text:
            return f"({self._n_bytes} bytes that are no text)"
        return f"{text} ({n_more} more bytes)" if n_more else text


class Content:
    """Of one request: its query, its body, and the reply's body."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._request = _Half()
        self._reply = _Half()

    def asked(self, data: bytes) -> None:
        self._request.add(data)

    def answered(self, data: bytes) -> None:
        self._reply.add(data)

    def write(self, request_id: str) -> None:
        for name, text in (
            ("query", self._query),
            ("request", self._request.text()),
            ("reply", self._reply.text()),
        ):
            if text:
                log.info("%s %s: %s", request_id, name, text, extra={"request_id": request_id})
