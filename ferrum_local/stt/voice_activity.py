"""Tells speech from silence while it comes, with the Silero model that faster-whisper brings."""

from __future__ import annotations

import numpy as np

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import VAD_WINDOW_SAMPLES

_CONTEXT_SAMPLES = 64  # of the window before that the model is shown again
_STATE_SHAPE = (1, 1, 128)


class VoiceActivity:
    """Of one stream of samples at 16 kHz. Streams share the model; one thread uses an object."""

    def __init__(self) -> None:
        from faster_whisper.vad import get_vad_model

        self._session = get_vad_model().session  # loaded once in a process
        self.reset()

    def reset(self) -> None:
        """Forget what was heard: what comes next is another stream."""
        self._h = np.zeros(_STATE_SHAPE, np.float32)
        self._c = np.zeros(_STATE_SHAPE, np.float32)
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)
        self._rest = np.zeros(0, np.float32)

    def add(self, samples: Samples) -> list[float]:
        """The probability of speech in each window of 512 samples that is complete now."""
        audio = np.concatenate((self._rest, samples))
        n_windows = len(audio) // VAD_WINDOW_SAMPLES
        n_used = n_windows * VAD_WINDOW_SAMPLES
        self._rest = audio[n_used:].copy()
        if n_windows == 0:
            return []
        windows = audio[:n_used].reshape(n_windows, VAD_WINDOW_SAMPLES)
        tails = windows[:, -_CONTEXT_SAMPLES:]
        contexts = np.concatenate((self._context[None], tails[:-1]))
        self._context = tails[-1].copy()
        probabilities, self._h, self._c = self._session.run(
            None,
            {"input": np.concatenate((contexts, windows), axis=1), "h": self._h, "c": self._c},
        )
        return [float(p) for p in np.asarray(probabilities).reshape(-1)]
