"""Audio on its way in: formats, rates, halves of samples, and the buffer that holds it."""

from __future__ import annotations

import base64

import av
import numpy as np
import pytest

from ferrum_local.audio import g711, wav
from ferrum_local.http.errors import ApiError
from ferrum_local.http.realtime.answer_events import AudioEncoder
from ferrum_local.http.realtime.input_audio import AudioDecoder, InputBuffer
from ferrum_local.http.realtime.settings import AudioFormat
from tests.audio.sounds import main_frequency_hz, tone


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(("law", "codec"), [("mu", "pcm_mulaw"), ("a", "pcm_alaw")])
def test_g711_codes_mean_what_ffmpeg_says(law: g711.Law, codec: str) -> None:
    context = av.CodecContext.create(codec, "r")
    context.sample_rate, context.layout = 8_000, "mono"
    frame = context.decode(av.Packet(bytes(range(256))))[0]
    theirs = frame.to_ndarray().reshape(-1) / 32768.0
    assert np.array_equal(g711.decode(bytes(range(256)), law), theirs.astype(np.float32))


@pytest.mark.parametrize("law", ["mu", "a"])
def test_g711_encodes_each_code_back_to_itself_but_for_the_two_zeros(law: g711.Law) -> None:
    codes = bytes(range(256))
    again = g711.encode(g711.decode(codes, law), law)
    differing = [i for i, code in enumerate(again) if code != i]
    assert differing in ([], [0x7F])


@pytest.mark.parametrize("law", ["mu", "a"])
def test_g711_keeps_a_sound_within_its_steps(law: g711.Law) -> None:
    sound = tone(0.5, 440.0, 8_000)
    heard = g711.decode(g711.encode(sound, law), law)
    assert float(np.abs(heard - sound).max()) < 0.04
    assert abs(main_frequency_hz(heard, 8_000) - 440.0) < 3


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("n_frame", [1, 7, 480, 100_000])
def test_rt_09_any_rate_in_frames_of_any_size_becomes_16_khz(rate_hz: int, n_frame: int) -> None:
    data = wav.to_s16(tone(0.2, 440.0, rate_hz))
    decoder = AudioDecoder(AudioFormat(rate=rate_hz))
    parts = [
        decoder.add(encoded(data[i : i + n_frame * 2]), "audio")
        for i in range(0, len(data), n_frame * 2)
    ]
    samples = np.concatenate(parts)
    assert abs(len(samples) - 3_200) <= 64  # what the resampler still holds
    assert abs(main_frequency_hz(samples) - 440.0) < 6


@pytest.mark.parametrize("type_", ["audio/pcmu", "audio/pcma"])
def test_rt_09_telephone_audio_is_heard_too(type_: str) -> None:
    format_ = AudioFormat(type=type_)  # type: ignore[arg-type]
    data = AudioEncoder(format_, 16_000).add(tone(0.2))
    samples = AudioDecoder(format_).add(encoded(data), "audio")
    assert abs(main_frequency_hz(samples) - 440.0) < 6


@pytest.mark.parametrize(
    ("audio", "problem"),
    [
        ("not base64!", "not valid base64"),
        ("AAA", "not valid base64"),
        (encoded(b"\0\0\0"), "2 bytes each, got 3 bytes"),
    ],
)
def test_rt_09_rt_06_what_is_no_audio_is_refused_by_name(audio: str, problem: str) -> None:
    with pytest.raises(ApiError) as caught:
        AudioDecoder(AudioFormat()).add(audio, "audio")
    assert caught.value.message.startswith("audio: ") and problem in caught.value.message
    assert (caught.value.param, caught.value.code) == ("audio", "invalid_audio")


def test_the_buffer_knows_where_its_samples_were() -> None:
    buffer = InputBuffer(max_s=1.0)
    for i in range(10):
        buffer.add(np.full(100, i, np.float32))
    buffer.drop_until(250)
    assert (buffer.start, buffer.end, len(buffer)) == (250, 1_000, 750)
    assert buffer.read(290, 310).tolist() == [2.0] * 10 + [3.0] * 10
    assert buffer.read(0, 300).tolist() == [2.0] * 50
    buffer.drop_until(5_000)
    assert (buffer.start, len(buffer)) == (1_000, 0)


def test_a_full_buffer_says_so_and_stays_as_it_is() -> None:
    buffer = InputBuffer(max_s=1.0)
    buffer.add(np.zeros(16_000, np.float32))
    with pytest.raises(ApiError, match="at most 1 s") as caught:
        buffer.add(np.zeros(1, np.float32))
    assert caught.value.code == "input_audio_buffer_full"
    assert len(buffer) == 16_000
