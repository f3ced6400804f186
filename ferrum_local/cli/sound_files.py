"""Sound files that commands write; the name's ending tells the format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast, get_args

import click

from ferrum_local.whole_files import replacing

if TYPE_CHECKING:
    from ferrum_local.audio.decode import Samples
    from ferrum_local.audio_types import AudioFormat


def format_of(output: str) -> AudioFormat:
    """:raises UsageError: the name ends in none of them."""
    from ferrum_local.audio_types import AudioFormat

    suffix = Path(output).suffix.lower().removeprefix(".")
    suffix = {"ogg": "opus", "raw": "pcm"}.get(suffix, suffix)
    if suffix not in get_args(AudioFormat):
        known = ", ".join(f".{name}" for name in get_args(AudioFormat))
        raise click.UsageError(f"{output}: the name has to end in one of {known}.")
    return cast("AudioFormat", suffix)


def write_file(
    sound: Iterable[Samples], source_rate_hz: int, format_: AudioFormat, path: Path
) -> float:
    """The file appears whole or not at all. :returns: the duration in seconds."""
    from ferrum_local.audio import wav

    with replacing(path, make_dirs=False) as file:
        seconds, rate_hz = write_sound(sound, source_rate_hz, format_, file)
        if format_ == "wav":
            n_bytes = file.tell()
            file.seek(0)
            file.write(wav.header(rate_hz, n_bytes - wav.HEADER_BYTES))
    return seconds


def write_sound(
    sound: Iterable[Samples], source_rate_hz: int, format_: AudioFormat, file: IO[bytes]
) -> tuple[float, int]:
    """:returns: the duration in seconds, and the sample rate of the file in Hz."""
    from ferrum_local.audio.encode import make_encoder, rates_hz

    rate_hz = source_rate_hz if source_rate_hz in rates_hz(format_) else 24_000
    encoder = make_encoder(format_, source_rate_hz=source_rate_hz, rate_hz=rate_hz)
    n_samples = 0
    for samples in sound:
        file.write(encoder.add(samples))
        n_samples += len(samples)
    file.write(encoder.finish())
    return n_samples / source_rate_hz, rate_hz
