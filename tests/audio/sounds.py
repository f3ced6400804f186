"""Sounds that the tests make, and files of them in many containers."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from ferrum_local.audio import wav
from ferrum_local.audio.decode import decode

Samples = npt.NDArray[np.float32]
RATE_HZ = 16_000

# container → (FFmpeg's name of it, codec, options of the muxer)
CONTAINERS = {
    "wav": ("wav", "pcm_s16le", {}),
    "mp3": ("mp3", "libmp3lame", {}),
    "flac": ("flac", "flac", {}),
    "opus": ("ogg", "libopus", {}),
    "webm": ("webm", "libopus", {}),
    "m4a": ("ipod", "aac", {}),  # its index is at the end
    "mkv": ("matroska", "aac", {}),
    "aiff": ("aiff", "pcm_s16be", {}),
    "aac": ("adts", "aac", {}),
}


def find_shared_audio(name: str) -> Path | None:
    """A recording that lies beside the project, in ``shared/audio`` of some parent directory."""
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "audio" / name
        if path.is_file():
            return path
    return None


def tone(seconds: float, hz: float = 440.0, rate_hz: int = RATE_HZ) -> Samples:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def noise(seconds: float, level: float = 0.01) -> Samples:
    generator = np.random.default_rng(7)
    return (generator.standard_normal(round(seconds * RATE_HZ)) * level).astype(np.float32)


def chord(seconds: float) -> Samples:
    """Something like music: three tones that swell."""
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    swell = (1 + np.sin(2 * np.pi * 2 * t)) / 2
    return (sum(np.sin(2 * np.pi * hz * t) for hz in (262, 330, 392)) * 0.2 * swell).astype("f4")


def as_wav(samples: Samples, rate_hz: int = RATE_HZ) -> bytes:
    return wav.header(rate_hz, len(samples) * 2) + wav.to_s16(samples)


def encoded(
    channels: Sequence[Samples], container: str, *, rate_hz: int = RATE_HZ, video: bool = False
) -> bytes:
    """A file with one audio track of ``channels``, and if wanted a video track before it."""
    name, codec, options = CONTAINERS[container]
    file = io.BytesIO()
    layout = "stereo" if len(channels) == 2 else "mono"
    with av.open(file, "w", format=name, options=options) as out:
        pictures = _add_video(out) if video else None
        stream = out.add_stream(codec, rate=48_000 if "opus" in codec else rate_hz)
        stream.layout = layout
        frame = av.AudioFrame.from_ndarray(np.stack(channels), format="fltp", layout=layout)
        frame.sample_rate = rate_hz
        if pictures is not None:
            out.mux(_pictures(pictures))
        for packet in (*stream.encode(frame), *stream.encode(None)):
            out.mux(packet)
    return file.getvalue()


def _add_video(out: av.container.OutputContainer) -> av.VideoStream:
    stream = out.add_stream("mpeg4", rate=Fraction(5))
    stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
    stream.time_base = stream.codec_context.time_base = Fraction(1, 5)
    return stream


def _pictures(stream: av.VideoStream) -> list[av.Packet]:
    packets = []
    for i in range(5):
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        frame.pts, frame.time_base = i, Fraction(1, 5)
        packets += stream.encode(frame)
    return packets + stream.encode(None)


def decoded(data: bytes, rate_hz: int = RATE_HZ) -> Samples:
    return np.concatenate(list(decode(io.BytesIO(data), sample_rate_hz=rate_hz)))


def main_frequency_hz(samples: Samples, rate_hz: int = RATE_HZ) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate_hz / len(samples))


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words to change, add or leave out: the Levenshtein distance over words."""
    row = list(range(len(heard) + 1))
    for i, wanted in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, got in enumerate(heard, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (wanted != got))
    return row[-1]
