"""Any file with sound becomes mono samples, block by block; anything else a clear error."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest

from ferrum_local.audio.decode import declared_duration_s, decode
from ferrum_local.errors import AudioTooLong, InvalidAudio
from tests.audio.sounds import (
    CONTAINERS,
    RATE_HZ,
    as_wav,
    decoded,
    encoded,
    main_frequency_hz,
    tone,
)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_is_read(container: str) -> None:
    data = encoded([tone(2.0, 440, 48_000)], container, rate_hz=48_000)
    samples = decoded(data)
    assert len(samples) == pytest.approx(2.0 * RATE_HZ, abs=0.1 * RATE_HZ)
    assert main_frequency_hz(samples) == pytest.approx(440, abs=2)


def test_the_sound_of_a_video_is_taken() -> None:
    samples = decoded(encoded([tone(1.0, 300)], "mkv", video=True))
    assert main_frequency_hz(samples) == pytest.approx(300, abs=2)


def test_stereo_is_mixed_down_and_nothing_of_a_side_is_lost() -> None:
    both = decoded(encoded([tone(1.0, 300), tone(1.0, 1000)], "wav"))
    spectrum = np.abs(np.fft.rfft(both)) / len(both) * 2
    assert spectrum[300] == pytest.approx(0.25, rel=0.05)
    assert spectrum[1000] == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000])
def test_rates_are_converted(rate_hz: int) -> None:
    samples = decoded(as_wav(tone(1.0, 440, rate_hz), rate_hz))
    assert abs(len(samples) - RATE_HZ) < 64
    assert main_frequency_hz(samples) == pytest.approx(440, abs=2)


def test_blocks_are_small_and_begin_before_the_file_is_read() -> None:
    file = io.BytesIO(as_wav(tone(60.0)))
    blocks = decode(file, sample_rate_hz=RATE_HZ)
    first = next(blocks)
    assert len(first) < 1.5 * RATE_HZ
    assert file.tell() < 10 * RATE_HZ * 2
    assert len(first) + sum(map(len, blocks)) == 60 * RATE_HZ


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 44, b"plain text, renamed to .mp3" * 20, as_wav(np.zeros(0, np.float32)),
     b"RIFF", b"ID3\x04\0\0\0\0\0\0"],
    ids=["empty", "zeros", "text", "only a header", "cut", "only tags"],
)  # fmt: skip
def test_stt_03_what_is_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidAudio) as caught:
        list(decode(io.BytesIO(data), sample_rate_hz=RATE_HZ))
    assert caught.value.param == "file"
    assert caught.value.message.startswith("file: ")


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{}'\n",
        "[playlist]\nFile1={}\nNumberOfEntries=1\n",
    ],
)
def test_a_playlist_reads_no_other_file(text: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.wav"
    secret.write_bytes(as_wav(tone(9.0)))
    for name in (str(secret), secret.as_uri()):
        with pytest.raises(InvalidAudio):
            list(decode(io.BytesIO(text.format(name).encode()), sample_rate_hz=RATE_HZ))


def test_a_session_description_listens_on_no_port() -> None:
    """FFmpeg would open UDP ports for it and wait."""
    text = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    text += "m=audio 5004 RTP/AVP 0\r\n"
    with pytest.raises(InvalidAudio, match="not audio or video that can be read"):
        list(decode(io.BytesIO(text.encode()), sample_rate_hz=RATE_HZ))


def test_a_cut_file_gives_what_is_there() -> None:
    whole = encoded([tone(4.0)], "mp3")
    samples = decoded(whole[: len(whole) // 2])
    assert 1.5 * RATE_HZ < len(samples) < 2.5 * RATE_HZ


def test_a_recording_that_is_too_long_is_refused_while_it_is_read() -> None:
    with pytest.raises(AudioTooLong, match="0.05 minutes"):
        list(decode(io.BytesIO(as_wav(tone(5.0))), sample_rate_hz=RATE_HZ, max_duration_s=3.0))


def test_not_a_number_does_not_spread() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 4, RATE_HZ, 0, "NONE", ""))
        out.writeframes(np.array([0.5, np.nan, np.inf, 0.25], "<f4").tobytes() * 1000)
    data = bytearray(file.getvalue())
    data[20:22] = b"\x03\0"  # the format's tag: IEEE float
    assert np.isfinite(decoded(bytes(data))).all()


def test_the_declared_length_is_told_without_decoding() -> None:
    assert declared_duration_s(io.BytesIO(as_wav(tone(2.5)))) == pytest.approx(2.5)
    assert declared_duration_s(io.BytesIO(b"no sound")) is None
