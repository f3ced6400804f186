"""What users said in a session, kept so that their items can be retrieved with it."""

from __future__ import annotations

import numpy as np

from ferrum_local.audio import wav
from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import WHISPER_RATE_HZ
from ferrum_local.http.realtime.items import Content


class KeptAudio:
    """:param max_s: of audio that is kept; of more, the oldest is forgotten."""

    def __init__(self, max_s: float) -> None:
        self._max_bytes = max_s * WHISPER_RATE_HZ * 2
        self._contents: list[Content] = []

    def keep(self, content: Content, samples: Samples) -> None:
        content.audio = wav.to_s16(samples)
        self._contents.append(content)
        while sum(len(c.audio) for c in self._contents) > self._max_bytes:
            self._contents.pop(0).audio = b""


def kept_samples(content: Content) -> Samples:
    """The audio of a content, at 16 kHz."""
    return np.frombuffer(content.audio, "<i2").astype(np.float32) / 32768.0
