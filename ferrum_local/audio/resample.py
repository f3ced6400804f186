"""Changes the sample rate of a stream, piece by piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ferrum_local.audio.decode import Samples


def resampling(source_rate_hz: int, rate_hz: int) -> Callable[[Samples | None], Samples]:
    """A function that resamples what it is given; with None it gives what is left, once.

    Until then it holds threads of FFmpeg's, one for each core.
    """
    if source_rate_hz == rate_hz:
        return lambda samples: np.zeros(0, np.float32) if samples is None else samples
    from av.audio.frame import AudioFrame
    from av.audio.resampler import AudioResampler

    resampler: AudioResampler | None = AudioResampler(format="flt", layout="mono", rate=rate_hz)

    def resample(samples: Samples | None) -> Samples:
        nonlocal resampler
        frame = None
        if samples is not None:
            if len(samples) == 0:
                return np.zeros(0, np.float32)
            data = np.ascontiguousarray(samples.reshape(1, -1))
            frame = AudioFrame.from_ndarray(data, format="flt", layout="mono")
            frame.sample_rate = source_rate_hz
        if resampler is None:
            return np.zeros(0, np.float32)
        parts = [out.to_ndarray().reshape(-1) for out in resampler.resample(frame)]
        if samples is None:
            resampler = None
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    return resample
