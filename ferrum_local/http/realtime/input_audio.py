"""The input audio buffer: base64 of whatever format becomes samples at 16 kHz, in their place."""

from __future__ import annotations

import base64
import binascii

import numpy as np

from ferrum_local.audio import g711
from ferrum_local.audio.decode import Samples
from ferrum_local.audio.resample import resampling
from ferrum_local.audio_types import WHISPER_RATE_HZ
from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.validation import invalid
from ferrum_local.http.realtime.settings import AudioFormat

SAMPLES_PER_MS = WHISPER_RATE_HZ // 1000
MAX_APPEND_BYTES = 15 * 1024 * 1024  # OpenAI's limit


class AudioDecoder:
    """Of one stream in one format."""

    def __init__(self, format_: AudioFormat) -> None:
        self.format = format_
        self._resample = resampling(format_.rate_hz, WHISPER_RATE_HZ)

    def add(self, encoded: str, path: str) -> Samples:
        """:raises ApiError: naming ``path``: no base64, half a sample, or too much at once."""
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise invalid(path, f"is not valid base64: {error}", code="invalid_audio") from error
        if len(data) > MAX_APPEND_BYTES:
            raise invalid(
                path, f"expected at most {MAX_APPEND_BYTES} bytes, got {len(data)}",
                code="audio_too_long",
            )  # fmt: skip
        if self.format.law is not None:
            return self._resample(g711.decode(data, self.format.law))
        if len(data) % 2:
            raise invalid(
                path,
                f"expected samples of 2 bytes each, got {len(data)} bytes",
                code="invalid_audio",
            )
        return self._resample(np.frombuffer(data, "<i2").astype(np.float32) / 32768.0)

    def close(self) -> None:
        """Give back what it holds; nothing can be added then."""
        self._resample(None)


class InputBuffer:
    """Samples since the last commit. Positions count from the session's first sample.

    :param max_s: of audio that is kept.
    """

    def __init__(self, max_s: float) -> None:
        self._max_samples = int(max_s * WHISPER_RATE_HZ)
        self._max_s = max_s
        self._parts: list[Samples] = []
        self.start = 0
        self.end = 0

    def __len__(self) -> int:
        return self.end - self.start

    def has_room(self, n_samples: int) -> bool:
        return len(self) + n_samples <= self._max_samples

    def make_room(self, n_samples: int) -> None:
        """Forget the oldest samples, as far as that is needed."""
        self.drop_until(self.end + n_samples - self._max_samples)

    def add(self, samples: Samples) -> None:
        """:raises ApiError: there is no room; nothing was added."""
        if not self.has_room(len(samples)):
            raise ApiError(
                f"The input audio buffer holds at most {self._max_s:g} s; commit or clear it.",
                code="input_audio_buffer_full",
            )
        if len(samples):
            self._parts.append(samples)
            self.end += len(samples)

    def read(self, start: int, end: int) -> Samples:
        """A copy of what lies between two positions."""
        whole = self._joined()
        first = max(start - self.start, 0)
        return whole[first : max(end - self.start, first)].copy()

    def drop_until(self, position: int) -> None:
        """Forget what lies before ``position``."""
        position = min(max(position, self.start), self.end)
        if position > self.start:
            rest = self._joined()[position - self.start :].copy()
            self._parts = [rest] if len(rest) else []
            self.start = position

    def _joined(self) -> Samples:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.zeros(0, np.float32)
