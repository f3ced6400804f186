"""``ferrum-local speak``: a text to a sound file, or to the loudspeaker."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast, get_args

import click

from ferrum_local.errors import FerrumError, InvalidRequest

if TYPE_CHECKING:
    from ferrum_local.audio_types import AudioFormat
    from ferrum_local.engine.speech_jobs import SpeechJob

STDOUT = "-"
# What plays a file on the systems there are; the first one found is taken.
PLAYERS = (
    ("afplay",),
    ("paplay",),
    ("pw-play",),
    ("aplay", "-q"),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"),
)
_WINDOWS_PLAYER = "(New-Object Media.SoundPlayer '{}').PlaySync()"


def run(
    text: str,
    *,
    output: str | None,
    voice: str | None,
    speaker: str | None,
    speed: float,
    play: bool,
) -> int:
    """Speak ``text`` to ``output`` (``-``: stdout), and aloud with ``play``.

    :returns: the exit code.
    """
    from ferrum_local.audio_types import SpeechRequest
    from ferrum_local.cli.speech_engine import speech_engine

    if output is None and not play:
        raise click.UsageError("Say where to: -o FILE, -o - for stdout, or --play.")
    format_ = _format(output) if output is not None else "wav"
    player = _player() if play else None
    with speech_engine("speech", voice) as engine, tempfile.TemporaryDirectory() as scratch:
        request = SpeechRequest(id="speak", model_id="", text=text, speaker=speaker, speed=speed)
        stream = engine.speak(request)
        if output == STDOUT:
            _write(stream, format_, sys.stdout.buffer)
            return 0
        path = Path(output) if output is not None else Path(scratch) / "speech.wav"
        seconds = _write_file(stream, format_, path)
        if output is not None:
            click.echo(f"{path} ({seconds:.1f} s)")
        if player is not None:
            return _play(player, path if format_ == "wav" else _as_wav(path, Path(scratch)))
    return 0


def _format(output: str) -> AudioFormat:
    from ferrum_local.audio_types import AudioFormat

    if output == STDOUT:
        return "wav"
    suffix = Path(output).suffix.lower().removeprefix(".")
    suffix = {"ogg": "opus", "raw": "pcm"}.get(suffix, suffix)
    if suffix not in get_args(AudioFormat):
        known = ", ".join(f".{name}" for name in get_args(AudioFormat))
        raise click.UsageError(f"{output}: the name has to end in one of {known}.")
    return cast("AudioFormat", suffix)


def _write_file(stream: SpeechJob, format_: AudioFormat, path: Path) -> float:
    """:returns: the duration in seconds."""
    from ferrum_local.audio import wav

    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        seconds, rate_hz = _write(stream, format_, file)
        if format_ == "wav":
            n_bytes = file.tell()
            file.seek(0)
            file.write(wav.header(rate_hz, n_bytes - wav.HEADER_BYTES))
    partial.replace(path)
    return seconds


def _write(stream: SpeechJob, format_: AudioFormat, file: BinaryIO) -> tuple[float, int]:
    """:returns: the duration in seconds, and the sample rate in Hz."""
    import numpy as np

    from ferrum_local.audio.encode import make_encoder, rates_hz

    rate_hz = stream.sample_rate_hz if stream.sample_rate_hz in rates_hz(format_) else 24_000
    encoder = make_encoder(format_, source_rate_hz=stream.sample_rate_hz, rate_hz=rate_hz)
    seconds = 0.0
    for part in stream:
        file.write(encoder.add(np.frombuffer(part.pcm, "<f4")))
        seconds = part.end_s
    file.write(encoder.finish())
    return seconds, rate_hz


def _as_wav(path: Path, scratch: Path) -> Path:
    """A copy that every player plays."""
    from ferrum_local.audio import wav
    from ferrum_local.audio.decode import decode

    rate_hz = 24_000
    with path.open("rb") as file:
        data = b"".join(wav.to_s16(block) for block in decode(file, sample_rate_hz=rate_hz))
    copy = scratch / "play.wav"
    copy.write_bytes(wav.header(rate_hz, len(data)) + data)
    return copy


def _player() -> tuple[str, ...]:
    """:raises FerrumError: nothing on this machine plays sound files."""
    for command in PLAYERS:
        if shutil.which(command[0]):
            return command
    if sys.platform == "win32":
        return ("powershell",)
    names = ", ".join(command[0] for command in PLAYERS)
    raise FerrumError(f"Nothing here can play sound; one of these is needed: {names}.")


def _play(player: tuple[str, ...], path: Path) -> int:
    arguments = [*player, str(path)]
    if player == ("powershell",):
        arguments = [*player, "-NoProfile", "-Command", _WINDOWS_PLAYER.format(path)]
    return subprocess.run(arguments, check=False).returncode


@click.command(name="speak", short_help="Speak a text.")
@click.argument("text", required=False)
@click.option(
    "-o", "--output", metavar="FILE", help="mp3, opus, aac, flac, wav or pcm; - is stdout."
)
@click.option("--voice", metavar="PATH", help="The voice to use.  [the starter voice]")
@click.option("--speaker", metavar="NAME", help="One speaker of a voice that has several.")
@click.option(
    "--speed", type=click.FloatRange(0.25, 4), default=1.0, show_default=True, help="How fast."
)
@click.option("--play", is_flag=True, help="Play it aloud.")
def speak_command(
    text: str | None,
    output: str | None,
    voice: str | None,
    speaker: str | None,
    speed: float,
    play: bool,
) -> int:
    """Speak TEXT, or what comes on stdin without one."""
    if text is None or text == STDOUT:
        text = sys.stdin.read()
    if not text.strip():
        raise click.UsageError("There is no text to speak.")
    try:
        return run(text, output=output, voice=voice, speaker=speaker, speed=speed, play=play)
    except InvalidRequest as error:
        raise click.UsageError(error.message.removeprefix("input: ") + ".") from error
