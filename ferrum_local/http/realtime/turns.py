"""Finds turns of speech: from probabilities of speech, window by window, to where they begin
and end. Pure; times are milliseconds since the session's first sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

WINDOW_MS = 32
# As Silero's own: what ends speech is less likely than what begins it, or words would be cut.
_HYSTERESIS = 0.15
_MIN_WINDOWS = 2  # a single one is a click
PAUSE_MS = 160  # from here on a turn may be over


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's ``server_vad``."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500


class SpeechStarted(msgspec.Struct, frozen=True):
    """``start_ms`` includes the padding."""

    start_ms: int


class SpeechPaused(msgspec.Struct, frozen=True):
    """Silence since ``voiced_end_ms``: the turn may be over, or go on."""

    voiced_end_ms: int


class SpeechStopped(msgspec.Struct, frozen=True):
    """``end_ms`` includes the silence that ended the turn; ``voiced_end_ms`` does not."""

    end_ms: int
    voiced_end_ms: int


TurnEvent: TypeAlias = SpeechStarted | SpeechPaused | SpeechStopped


class TurnDetector:
    """One stream of windows, the first of which begins at 0 ms."""

    def __init__(self, settings: TurnSettings) -> None:
        self.settings = settings
        self.is_speaking = False
        self._now_ms = 0  # the end of the last window
        self._floor_ms = 0  # no turn begins before it
        self._n_loud = 0  # windows in a row
        self.voiced_end_ms = 0
        self.is_paused = False  # within a turn: silence that may end it

    @property
    def now_ms(self) -> int:
        return self._now_ms

    def add(self, probability: float) -> Iterator[TurnEvent]:
        """What happens with the next window. Read it to its end."""
        self._now_ms += WINDOW_MS
        threshold = self.settings.threshold
        if self.is_speaking:
            threshold = max(threshold - _HYSTERESIS, 0.01)
        if probability >= threshold:
            yield from self._loud()
        else:
            yield from self._quiet()

    def reset(self) -> None:
        """End a turn without an event, and let none begin before now."""
        self.is_speaking = self.is_paused = False
        self._n_loud = 0
        self._floor_ms = self._now_ms

    def _loud(self) -> Iterator[TurnEvent]:
        self._n_loud += 1
        if self.is_speaking:
            self.voiced_end_ms = self._now_ms
            self.is_paused = False
        elif self._n_loud >= _MIN_WINDOWS:
            self.is_speaking = True
            self.is_paused = False
            self.voiced_end_ms = self._now_ms
            first_ms = self._now_ms - self._n_loud * WINDOW_MS
            yield SpeechStarted(max(self._floor_ms, first_ms - self.settings.prefix_padding_ms))

    def _quiet(self) -> Iterator[TurnEvent]:
        self._n_loud = 0
        if not self.is_speaking:
            return
        silence_ms = self._now_ms - self.voiced_end_ms
        if silence_ms >= self.settings.silence_duration_ms:
            end_ms = self.voiced_end_ms + self.settings.silence_duration_ms
            self.is_speaking = self.is_paused = False
            self._floor_ms = end_ms
            yield SpeechStopped(end_ms, self.voiced_end_ms)
        elif silence_ms >= PAUSE_MS and not self.is_paused:
            self.is_paused = True
            yield SpeechPaused(self.voiced_end_ms)
