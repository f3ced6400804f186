"""The engine's part for speech that is written down while it is spoken."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ferrum_local.audio_types import WHISPER_RATE_HZ
from ferrum_local.engine.jobs import FairTurns
from ferrum_local.engine.speech_jobs import Counts
from ferrum_local.errors import Cancelled

if TYPE_CHECKING:
    from ferrum_local.audio.decode import Samples
    from ferrum_local.stt.live import LiveTranscript


class LiveTranscriptionJob:
    """One turn of speech; see ``engine.contracts.LiveTranscription``.

    :param turns: shared by all that speak now: live speech has a worker of its own.
    :param on_close: called by ``close``.
    """

    def __init__(
        self,
        transcript: LiveTranscript,
        turns: FairTurns,
        counts: Counts,
        on_close: Callable[[], None],
    ) -> None:
        self._transcript = transcript
        self._turns = turns
        self._counts = counts
        self._on_close = on_close
        self._cancelled = False
        self._n_samples = 0

    @property
    def language(self) -> str | None:
        return self._transcript.language

    def text(self, samples: Samples, *, urgent: bool) -> str | None:
        if not urgent and (self._turns.n_running or self._turns.n_waiting):
            return None
        with self._turns.take(lambda: self._cancelled):
            if self._cancelled:
                raise Cancelled("The turn of speech was given up.")
            started_s = time.monotonic()
            text = self._transcript.text(samples)
        self._counts.add(
            audio_s=max(0, len(samples) - self._n_samples) / WHISPER_RATE_HZ,
            busy_s=time.monotonic() - started_s,
        )
        self._n_samples = len(samples)
        return text

    def close(self) -> None:
        self._cancelled = True
        self._on_close()
