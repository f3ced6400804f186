"""``ferrum-local speak``: a text to a sound file, or to the loudspeaker."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from ferrum_local.errors import FerrumError, InvalidRequest
from ferrum_local.processes import environment_for_others

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
    import numpy as np

    from ferrum_local.audio_types import SpeechRequest
    from ferrum_local.cli.sound_files import format_of, write_file, write_sound
    from ferrum_local.cli.speech_engine import speech_engine

    if output is None and not play:
        raise click.UsageError("Say where to: -o FILE, -o - for stdout, or --play.")
    to_stdout = output == STDOUT
    format_ = "wav" if output is None or to_stdout else format_of(output)
    player = _player() if play else None
    with speech_engine("speech", voice) as engine, tempfile.TemporaryDirectory() as scratch:
        request = SpeechRequest(id="speak", model_id="", text=text, speaker=speaker, speed=speed)
        stream = engine.speak(request)
        sound = (np.frombuffer(part.pcm, "<f4") for part in stream)
        if to_stdout:
            write_sound(sound, stream.sample_rate_hz, format_, sys.stdout.buffer)
            return 0
        path = Path(output) if output is not None else Path(scratch) / "speech.wav"
        seconds = write_file(sound, stream.sample_rate_hz, format_, path)
        if output is not None:
            click.echo(f"{path} ({seconds:.1f} s)")
        if player is not None:
            return _play(player, path if format_ == "wav" else _as_wav(path, Path(scratch)))
    return 0


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
    return subprocess.run(arguments, env=environment_for_others(), check=False).returncode


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
