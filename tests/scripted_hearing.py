"""A scripted engine that hears loud samples as speech, and words in them, failing on demand."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable

import numpy as np

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import LiveTranscriptRequest
from tests.scripted_voice import SpeakingEngine

HEARD_LIVE = "What is the time?"
WINDOW = 512  # samples at 16 kHz
_RATE_HZ = 24_000


def loud(n_ms: int) -> str:
    """An event's audio that is speech."""
    return base64.b64encode(np.full(n_ms * _RATE_HZ // 1000, 9_000, "<i2").tobytes()).decode()


def quiet(n_ms: int) -> str:
    return base64.b64encode(bytes(2 * n_ms * _RATE_HZ // 1000)).decode()


class LoudnessDetector:
    """1.0 for a window that is loud, else 0.0."""

    def __init__(self) -> None:
        self._rest = np.zeros(0, np.float32)

    def add(self, samples: Samples) -> list[float]:
        rest = np.concatenate([self._rest, samples])
        n_windows = len(rest) // WINDOW
        self._rest = rest[n_windows * WINDOW :]
        windows = rest[: n_windows * WINDOW].reshape(n_windows, WINDOW)
        return [float(np.abs(window).mean() > 0.1) for window in windows]

    def reset(self) -> None:
        self._rest = self._rest[:0]


class ScriptedTurn:
    """Hears the same in every turn; raises the engine's ``deaf_live_with``."""

    language = "en"

    def __init__(self, engine: HearingEngine, request: LiveTranscriptRequest) -> None:
        self.request = request
        self.closed = threading.Event()
        self._engine = engine

    def text(self, samples: Samples, *, urgent: bool) -> str | None:
        self._engine.looks.append(len(samples))
        if self._engine.deaf_live_with is not None:
            raise self._engine.deaf_live_with
        return HEARD_LIVE

    def close(self) -> None:
        self.closed.set()


class HearingEngine(SpeakingEngine):
    """``turns``: all that were begun. ``looks``: the samples that each look at one had."""

    deaf_live_with: Exception | None = None
    no_detector_with: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[ScriptedTurn] = []
        self.looks: list[int] = []

    def speech_detector(self) -> LoudnessDetector:
        if self.no_detector_with is not None:
            raise self.no_detector_with
        return LoudnessDetector()

    def transcribe_live(
        self,
        request: LiveTranscriptRequest,
        *,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> ScriptedTurn:
        self.turns.append(ScriptedTurn(self, request))
        return self.turns[-1]

    @property
    def n_open_turns(self) -> int:
        return sum(not turn.closed.is_set() for turn in self.turns)
