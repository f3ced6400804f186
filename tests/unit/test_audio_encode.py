"""Encoders take samples piece by piece; what comes out is a whole file of the right format."""

from __future__ import annotations

import io
import struct
import wave
from typing import get_args

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.audio import wav
from ferrum_local.audio.encode import make_encoder, rates_hz
from ferrum_local.audio_types import AudioFormat
from tests.audio.sounds import Samples, decoded, main_frequency_hz, tone

SOURCE_HZ = 22_050
CODECS = {"mp3": "mp3float", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "pcm_s16le"}


def encode(samples: Samples, format_: AudioFormat, rate_hz: int, n_piece: int = 5000) -> bytes:
    encoder = make_encoder(format_, source_rate_hz=SOURCE_HZ, rate_hz=rate_hz)
    pieces = [encoder.add(samples[i : i + n_piece]) for i in range(0, len(samples), n_piece)]
    return b"".join([*pieces, encoder.finish()])


@pytest.mark.parametrize("format_", CODECS)
@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
def test_every_format_is_what_it_says(format_: AudioFormat, rate_hz: int) -> None:
    data = encode(tone(2.0, 440, SOURCE_HZ), format_, rate_hz)
    with av.open(io.BytesIO(data)) as container:
        (stream,) = container.streams
        assert stream.codec_context.name == CODECS[format_]
        assert stream.codec_context.sample_rate == (48_000 if format_ == "opus" else rate_hz)
    samples = decoded(data, rate_hz)
    assert len(samples) / rate_hz == pytest.approx(2.0, abs=0.12)
    assert main_frequency_hz(samples, rate_hz) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("format_", get_args(AudioFormat))
def test_the_first_second_is_not_held_back(format_: AudioFormat) -> None:
    encoder = make_encoder(format_, source_rate_hz=SOURCE_HZ, rate_hz=24_000)
    assert len(encoder.add(tone(1.0, 440, SOURCE_HZ))) > 500


@pytest.mark.parametrize("format_", get_args(AudioFormat))
def test_every_offered_rate_works(format_: AudioFormat) -> None:
    for rate_hz in rates_hz(format_):
        assert len(encode(tone(0.3, 440, SOURCE_HZ), format_, rate_hz)) > 100


def test_pcm_is_resampled_without_loss_of_time() -> None:
    pcm = np.frombuffer(encode(tone(3.0, 440, SOURCE_HZ), "pcm", 24_000), "<i2")
    assert len(pcm) == 72_000
    assert main_frequency_hz(pcm.astype("f4"), 24_000) == pytest.approx(440, abs=1)


@given(st.lists(st.integers(0, 900), max_size=12))
def test_how_samples_are_cut_makes_no_difference(cuts: list[int]) -> None:
    samples = tone(0.1, 440, SOURCE_HZ)
    whole = encode(samples, "pcm", SOURCE_HZ, n_piece=10**6)
    encoder = make_encoder("pcm", source_rate_hz=SOURCE_HZ, rate_hz=SOURCE_HZ)
    bounds = [0, *sorted(cuts), len(samples)]
    pieces = [encoder.add(samples[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    assert b"".join([*pieces, encoder.finish()]) == whole


def test_a_wav_header_tells_the_size_or_that_it_is_unknown() -> None:
    known = wav.header(22_050, 1000)
    assert len(known) == wav.HEADER_BYTES
    assert struct.unpack("<I", known[4:8]) == (1036,)
    assert struct.unpack("<I", known[40:44]) == (1000,)
    with wave.open(io.BytesIO(known + bytes(1000))) as file:
        assert (file.getnframes(), file.getframerate(), file.getnchannels()) == (500, 22_050, 1)
    assert wav.header(22_050, None)[40:44] == wav.header(22_050, None)[4:8] == b"\xff" * 4
    assert wav.header(22_050, 2**33)[40:44] == b"\xff" * 4


def test_a_streamed_wav_has_one_header() -> None:
    data = encode(tone(1.0, 440, SOURCE_HZ), "wav", SOURCE_HZ)
    assert data.count(b"RIFF") == data.count(b"WAVEfmt ") == 1


def test_too_loud_is_clipped_and_not_wrapped_round() -> None:
    loud = np.array([3.0, -3.0, 0.0], np.float32)
    assert np.frombuffer(wav.to_s16(loud), "<i2").tolist() == [32767, -32767, 0]
