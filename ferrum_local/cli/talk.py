"""``ferrum-local talk``: a spoken conversation, with a microphone or from file to file."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from ferrum_local.cli.server_address import configured_key, server_options
from ferrum_local.errors import FerrumError, InvalidAudio

if TYPE_CHECKING:
    from ferrum_local.audio.decode import Samples
    from ferrum_local.cli.realtime_client import RealtimeClient

RATE_HZ = 24_000  # of files' sound on its way to the server, and of its answers
ANSWER_TIMEOUT_S = 300.0  # without any event


class Turn(NamedTuple):
    """One question and its answer. ``pcm``: 16 bits, mono, 24 kHz."""

    heard: str
    said: str
    pcm: bytes


def session_settings(
    *, instructions: str | None, voice: str | None, input_rate_hz: int, output_rate_hz: int
) -> dict[str, Any]:
    """Of a session where the speaker says when a turn is over."""
    output: dict[str, Any] = {"format": {"type": "audio/pcm", "rate": output_rate_hz}}
    if voice:
        output["voice"] = voice
    settings: dict[str, Any] = {
        "type": "realtime",
        "output_modalities": ["audio"],
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": input_rate_hz},
                "transcription": {"model": "whisper-1"},
                "turn_detection": None,
            },
            "output": output,
        },
    }
    if instructions:
        settings["instructions"] = instructions
    return settings


def one_turn(client: RealtimeClient, sound: Iterable[Samples]) -> Turn:
    """Say ``sound`` (at 24 kHz) and wait for the whole answer.

    :raises FerrumError: the server reports an error, or the answer is not complete.
    """
    from ferrum_local.audio import wav

    for samples in sound:
        client.append(wav.to_s16(samples))
    client.send("input_audio_buffer.commit")
    client.send("response.create")
    heard = said = None
    ending: dict[str, Any] | None = None
    pcm = bytearray()
    # The transcript of what was heard may come after the answer to it.
    while heard is None or ending is None:
        try:
            event = client.receive(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise FerrumError("The server does not answer any more.") from error
        type_ = event.get("type")
        if type_ == "error":
            raise FerrumError(str(event["error"]["message"]))
        if type_ == "conversation.item.input_audio_transcription.completed":
            heard = str(event["transcript"]).strip()
        elif type_ == "conversation.item.input_audio_transcription.failed":
            raise FerrumError(str(event["error"]["message"]))
        elif type_ == "response.output_audio.delta":
            pcm += base64.b64decode(event["delta"])
        elif type_ == "response.output_audio_transcript.done":
            said = str(event["transcript"]).strip()
        elif type_ == "response.done":
            ending = event["response"]
    if ending["status"] not in ("completed", "incomplete"):
        details = (ending.get("status_details") or {}).get("error") or {}
        raise FerrumError(f"The answer {ending['status']}: {details.get('message', 'no reason')}")
    return Turn(heard, said or "", bytes(pcm))


def read_sound(path: str) -> list[Samples]:
    """A question in any audio file, at 24 kHz.

    :raises FerrumError: it cannot be read, or is no audio.
    """
    from ferrum_local.audio.decode import decode

    try:
        with open(path, "rb") as file:
            return list(decode(file, sample_rate_hz=RATE_HZ))
    except OSError as error:
        raise FerrumError(f"{path}: cannot be read ({error.strerror})") from error
    except InvalidAudio as error:
        raise FerrumError(f"{path}: {error.message.removeprefix('file: ')}") from error


def run_files(client: RealtimeClient, sound: list[Samples], out: str) -> None:
    """One turn; its answer to the file ``out``."""
    from ferrum_local.audio import wav
    from ferrum_local.cli.sound_files import format_of, write_file

    format_ = format_of(out)
    turn = one_turn(client, sound)
    seconds = write_file([wav.from_s16(turn.pcm)], RATE_HZ, format_, Path(out))
    click.echo(f"You: {turn.heard}")
    click.echo(f"Answer: {turn.said}")
    click.echo(f"{out} ({seconds:.1f} s)")


@click.command(name="talk", short_help="Talk with a model aloud.")
@server_options("A running server.  [one for this command alone]")
@click.option("--model", metavar="MODEL", help="GGUF file; with --url the name of a model.")
@click.option("--whisper-model", metavar="DIR", help="What listens; not with --url.")
@click.option("--voice", metavar="VOICE", help="Voice file; with --url the name of a voice.")
@click.option("--instructions", metavar="TEXT", help="How to answer, in words to the model.")
@click.option("--wav", metavar="FILE", help="Say what is in FILE instead of using a microphone.")
@click.option("--out", metavar="FILE", help="Where the answer to --wav goes, .wav or .mp3 or …")
def talk_command(
    url: str | None,
    api_key: str | None,
    model: str | None,
    whisper_model: str | None,
    voice: str | None,
    instructions: str | None,
    wav: str | None,
    out: str | None,
) -> int:
    """Talk with a model: press Enter, speak, press Enter, listen.

    Enter during an answer interrupts it. Ctrl-C leaves. The microphone needs the package
    sounddevice (pip install sounddevice).

    \b
    Examples:
      ferrum-local talk
      ferrum-local talk --url http://127.0.0.1:8000
      ferrum-local talk --wav question.wav --out answer.wav
    """
    from ferrum_local.cli.local_server import talking_server
    from ferrum_local.cli.push_to_talk import converse
    from ferrum_local.cli.realtime_client import RealtimeClient, realtime_url
    from ferrum_local.cli.sound_devices import SoundDevices
    from ferrum_local.cli.sound_files import format_of
    from ferrum_local.config import resolve

    if (wav is None) != (out is None):
        raise click.UsageError("--wav and --out go together: what is said, and the answer to it.")
    if url is not None and whisper_model is not None:
        raise click.UsageError("--whisper-model is for a server of this command, not for --url.")
    if out is not None:
        format_of(out)
    # Before a model is loaded: what is missing shall be told at once.
    sound = read_sound(wav) if wav is not None else []
    devices = SoundDevices() if wav is None else None
    with ExitStack() as held:
        if url is None:
            flags = {
                "model": (model,) if model else (),
                "whisper_model": (whisper_model,) if whisper_model else (),
                "voice": (voice,) if voice else (),
            }
            url, api_key = held.enter_context(talking_server(flags))
            model = voice = None
        elif api_key is None:
            resolved = resolve({}, os.environ, cwd=Path.cwd())
            api_key = configured_key(resolved, urlsplit(realtime_url(url, None)).hostname)
        client = held.enter_context(RealtimeClient(url, api_key=api_key, model=model))
        settings = session_settings(
            instructions=instructions,
            voice=voice,
            input_rate_hz=devices.input_rate_hz if devices else RATE_HZ,
            output_rate_hz=devices.output_rate_hz if devices else RATE_HZ,
        )
        client.send("session.update", session=settings)
        if devices is not None:
            held.enter_context(devices)
            converse(client, devices)
        elif out is not None:
            run_files(client, sound, out)
    return 0
