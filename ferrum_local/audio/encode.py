"""Mono float32 samples → mp3, opus, aac, flac, wav or pcm, piece by piece."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
import numpy as np

from ferrum_local.audio import wav
from ferrum_local.audio.decode import Samples
from ferrum_local.audio.resample import resampling
from ferrum_local.audio_types import AudioFormat

if TYPE_CHECKING:
    from av.audio.stream import AudioStream

MP3_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
PCM_RATE_HZ = 24_000  # what OpenAI's clients expect of bytes without a header
OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)


class _Format(msgspec.Struct, frozen=True):
    """A format of FFmpeg's. ``options`` keep the muxer from waiting or seeking back;
    ``codec_options`` make it fast: speech gains nothing from the slower ways."""

    container: str
    codec: str
    sample_format: str
    bit_rate: int | None
    options: dict[str, str]
    codec_options: dict[str, str] = {}


_FORMATS: dict[str, _Format] = {
    "mp3": _Format(
        "mp3", "libmp3lame", "s16p", 64_000, {"write_xing": "0", "id3v2_version": "0"},
        {"compression_level": "7"},
    ),
    # Pages of 100 ms rather than a second: the first sound is not held back.
    "opus": _Format("ogg", "libopus", "s16", 48_000, {"page_duration": "100000"}),
    "aac": _Format("adts", "aac", "fltp", 64_000, {}, {"aac_coder": "fast"}),
    "flac": _Format("flac", "flac", "s16", None, {}),
}  # fmt: skip


class Encoder(Protocol):
    """Call ``add`` with samples as they come, then ``finish`` once; join what they return."""

    def add(self, samples: Samples) -> bytes: ...

    def finish(self) -> bytes: ...


def rates_hz(format_: AudioFormat) -> tuple[int, ...]:
    """The sample rates that a reply in this format may have."""
    return OPUS_RATES_HZ if format_ == "opus" else MP3_RATES_HZ


def usual_rate_hz(format_: AudioFormat, source_rate_hz: int) -> int:
    """The source's own where the format has it; bytes without a header are always 24 kHz."""
    if format_ == "pcm" or source_rate_hz not in rates_hz(format_):
        return PCM_RATE_HZ
    return source_rate_hz


def make_encoder(format_: AudioFormat, *, source_rate_hz: int, rate_hz: int) -> Encoder:
    """A streaming encoder; ``rate_hz`` is one of :func:`rates_hz`.

    The WAV header says that its size is unknown: whoever knows it writes :func:`wav.header`.
    """
    if format_ == "wav":
        return _PcmEncoder(source_rate_hz, rate_hz, wav.header(rate_hz, None))
    if format_ == "pcm":
        return _PcmEncoder(source_rate_hz, rate_hz, b"")
    return _AvEncoder(_FORMATS[format_], source_rate_hz, rate_hz)


class _PcmEncoder:
    """16-bit samples, with a header before the first."""

    def __init__(self, source_rate_hz: int, rate_hz: int, header: bytes) -> None:
        self._header = header
        self._resample = resampling(source_rate_hz, rate_hz)

    def add(self, samples: Samples) -> bytes:
        return self._begin() + wav.to_s16(self._resample(samples))

    def finish(self) -> bytes:
        return self._begin() + wav.to_s16(self._resample(None))

    def _begin(self) -> bytes:
        header, self._header = self._header, b""
        return header


class _AvEncoder:
    """One of FFmpeg's codecs in its container, written to a sink that is emptied on the way."""

    def __init__(self, format_: _Format, source_rate_hz: int, rate_hz: int) -> None:
        import av

        self._sink = _Sink()
        self._container = av.open(
            self._sink, "w", format=format_.container,
            options={"flush_packets": "1", **format_.options},
        )  # fmt: skip
        stream = self._container.add_stream(
            format_.codec, rate=rate_hz, options=dict(format_.codec_options)
        )
        self._stream = cast("AudioStream", stream)
        self._stream.layout = "mono"
        self._stream.format = format_.sample_format
        if format_.bit_rate is not None:
            self._stream.bit_rate = format_.bit_rate
        self._source_rate_hz = source_rate_hz
        self._n_samples = 0

    def add(self, samples: Samples) -> bytes:
        from av.audio.frame import AudioFrame

        if len(samples) == 0:
            return b""
        clipped = np.clip(samples, -1.0, 1.0).reshape(1, -1)
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(clipped), format="flt", layout="mono")
        frame.sample_rate = self._source_rate_hz
        frame.pts = self._n_samples
        self._n_samples += len(samples)
        # The codec context resamples to its own rate and cuts frames of its own size.
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
        return self._sink.take()

    def finish(self) -> bytes:
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        return self._sink.take()


class _Sink(io.RawIOBase):
    """Where the muxer writes; not seekable, so it writes what a stream needs."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: object) -> int:
        part = bytes(data)  # type: ignore[call-overload]
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)
