"""One transcription or spoken text, as the engine keeps it while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ferrum_local.audio_types import (
    SpeechRequest,
    SpokenPart,
    TranscribedSegment,
    TranscriptionFacts,
    TranscriptionRequest,
)
from ferrum_local.engine.jobs import FairTurns, Job, Running, as_ferrum_error
from ferrum_local.errors import Cancelled, FerrumError
from ferrum_local.request_names import request_names

if TYPE_CHECKING:
    from ferrum_local.stt.transcriber import Transcription
    from ferrum_local.tts.synthesis import Utterance
    from ferrum_local.tts.voice import Voice


class Counts:
    """Of one model. ``audio_s``: seconds heard or spoken; ``busy_s``: what they took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        self.audio_s = 0.0
        self.busy_s = 0.0
        self.load_time_s = 0.0

    def add(self, *, requests: int = 0, audio_s: float = 0.0, busy_s: float = 0.0) -> None:
        """May be called from any thread."""
        with self._lock:
            self.requests += requests
            self.audio_s += audio_s
            self.busy_s += busy_s


class TranscriptionJob(Job[TranscribedSegment]):
    """A running transcription; see ``engine.contracts.TranscriptionStream``."""

    def __init__(self, request: TranscriptionRequest) -> None:
        super().__init__(request.id, request_names(request))
        self._model_id = request.model_id
        self.transcription: Transcription | None = None

    @property
    def facts(self) -> TranscriptionFacts:
        assert self.transcription is not None
        return TranscriptionFacts(
            model_id=self._model_id,
            language=self.transcription.language,
            duration_s=self.transcription.duration_s,
        )


class SpeechJob:
    """A text being spoken, part by part, on the thread that iterates it.

    Nothing is synthesised ahead of what is asked for. Leaving the block, or the end, closes it.

    :raises QueueFull: too many wait for the voice already.
    """

    def __init__(
        self,
        request: SpeechRequest,
        voice: Voice,
        utterances: Iterable[Utterance],
        turns: FairTurns,
        counts: Counts,
        on_done: Callable[[Running, FerrumError | None], None],
    ) -> None:
        self.request_id = request.id
        self.model_id = request.model_id
        self.names = request_names(request)
        self.sample_rate_hz = voice.sample_rate_hz
        self.frame_samples = voice.hop_length
        self._request = request
        self._voice = voice
        self._utterances = utterances
        self._turns = turns
        self._counts = counts
        self._on_done: Callable[[Running, FerrumError | None], None] | None = on_done
        self._cancelled = False
        self._place = turns.enter()

    def cancel(self) -> None:
        self._cancelled = True

    def __iter__(self) -> Iterator[SpokenPart]:
        from ferrum_local.tts.synthesis import speak

        parts = speak(
            self._request, self._voice, self._utterances,
            turn=self._turn, check=self._check_cancelled,
        )  # fmt: skip
        try:
            while True:
                self._check_cancelled()
                part = next(parts, None)
                self._check_cancelled()
                if part is None:
                    break
                self._counts.add(audio_s=part.end_s - part.start_s)
                yield part
        except Exception as error:
            self._done(as_ferrum_error(error))
            raise
        self._done(None)

    def close(self) -> None:
        """Safe to call twice; before the end it counts as cancelled."""
        self.cancel()
        self._done(Cancelled("The request was cancelled."))

    def __enter__(self) -> SpeechJob:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Only the voice's own time counts as busy: its text may still be being written."""
        self._check_cancelled()
        with self._turns.take(lambda: self._cancelled, self._request.priority, place=self._place):
            started_s = time.monotonic()
            try:
                yield
            finally:
                self._counts.add(busy_s=time.monotonic() - started_s)

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("The request was cancelled.")

    def _done(self, error: FerrumError | None) -> None:
        self._turns.leave(self._place)
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self, error)
