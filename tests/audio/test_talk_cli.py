"""``ferrum-local talk`` from file to file, with a server of its own and with a running one."""

from __future__ import annotations

import os
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ferrum_local.audio import wav
from ferrum_local.audio_types import AudioConfig
from ferrum_local.cli.push_to_talk import PushToTalk, State
from ferrum_local.cli.realtime_client import RealtimeClient
from ferrum_local.cli.talk import read_sound, session_settings
from ferrum_local.engine.contracts import InferenceStream
from ferrum_local.engine.facade import LocalEngine
from ferrum_local.server.http_server import HttpServer
from ferrum_local.types import Constraint, InferenceRequest, LlmOptions, ModelSpec
from tests.audio.conftest import TINY
from tests.audio.sounds import word_errors, words
from tests.audio.test_speech_cli import run
from tests.conftest import SMOLLM2, RunningServer

QUESTION = "Is it going to rain in the mountains tomorrow?"
ANSWER = "The weather will be very nice. You can leave your umbrella at home."


class OneAnswer(LocalEngine):
    """Real models; what is written is always ``ANSWER``.

    The command samples its answers, and some of a small model are words that nobody can hear.
    """

    def infer_stream(self, request: InferenceRequest) -> InferenceStream:
        constraint = Constraint(kind="choice", value=(ANSWER,))
        return super().infer_stream(msgspec.structs.replace(request, constraint=constraint))


@pytest.fixture(scope="module")
def talking_server(speech_models: None, steady_voice: Path) -> Iterator[RunningServer]:
    audio = AudioConfig(
        whisper_models=(ModelSpec(id="tiny", path=str(TINY)),),
        voices=(ModelSpec(id="joe", path=str(steady_voice)),),
    )
    model = ModelSpec(id="smol", path=str(SMOLLM2))
    engine = OneAnswer([model], LlmOptions(ctx_size=512, slots=1), audio=audio)
    engine.load()
    with HttpServer(engine) as server:
        assert server.url is not None
        yield RunningServer(url=server.url, model="smol", pid=os.getpid())
    engine.close()


@pytest.fixture(scope="module")
def question(speech_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spoken = speech_server.client().audio.speech.create(
        model="tts-1", voice="alloy", input=QUESTION, response_format="mp3"
    )
    path = tmp_path_factory.mktemp("talk") / "question.mp3"
    path.write_bytes(spoken.content)
    return path


def check_turn(stdout: str, answer: Path) -> tuple[str, float]:
    """What the command has printed and written.

    :returns: the answer's text, and its seconds of sound.
    """
    you, *answered, written = stdout.splitlines()
    said = "\n".join(answered)
    assert word_errors(words(QUESTION), words(you.removeprefix("You: "))) <= 3, you
    assert said.startswith("Answer: ") and written.startswith(answer.name)
    with wave.open(str(answer)) as sound:
        assert sound.getframerate() == 24_000
        return said.removeprefix("Answer: "), sound.getnframes() / 24_000


def test_a_turn_with_a_running_server(
    talking_server: RunningServer, question: Path, tmp_path: Path
) -> None:
    done = run(
        "talk", "--url", talking_server.url, "--wav", str(question), "--out", "answer.wav",
        "--instructions", "Answer in one short sentence.", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    said, _ = check_turn(done.stdout, tmp_path / "answer.wav")
    assert said == ANSWER
    heard = talking_server.client().audio.transcriptions.create(
        model="tiny", file=tmp_path / "answer.wav", language="en"
    ).text  # fmt: skip
    assert word_errors(words(ANSWER), words(heard)) <= 3, heard


def test_a_turn_with_a_server_of_its_own(question: Path, tmp_path: Path) -> None:
    """The voice is the one that ships, and the answer is sampled: its words are not heard here."""
    done = run("talk", "--wav", str(question), "--out", "answer.wav", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said, seconds = check_turn(done.stdout, tmp_path / "answer.wav")
    assert words(said)
    assert seconds > 0.1 * len(words(said))  # nobody speaks faster: all of it is there


class Devices:
    """A microphone that hears what the test says, and a loudspeaker that is slow."""

    input_rate_hz = 24_000

    def __init__(self) -> None:
        self.on_sound: Callable[[bytes], None] = lambda pcm: None
        self.n_played_bytes = 0

    def record(self, on_sound: Callable[[bytes], None]) -> None:
        self.on_sound = on_sound

    def mute(self) -> None:
        self.on_sound = lambda pcm: None

    @property
    def is_playing(self) -> bool:
        return self.n_played_bytes > 0

    def play(self, pcm: bytes) -> None:
        self.n_played_bytes += len(pcm)

    def stop_playing(self) -> float:
        self.n_played_bytes = 0
        return 0.1


def test_a_key_interrupts_an_answer_and_the_next_turn_goes_on(
    speech_server: RunningServer, question: Path
) -> None:
    devices = Devices()
    said: list[str] = []
    seen: list[dict[str, Any]] = []
    with RealtimeClient(speech_server.url) as client:
        talk = PushToTalk(
            client, devices, on_sound=lambda pcm: talk.heard(pcm), say=said.append
        )  # fmt: skip
        settings = session_settings(
            instructions="Tell a long story.", voice=None, input_rate_hz=24_000,
            output_rate_hz=24_000,
        )  # fmt: skip
        client.send("session.update", session={**settings, "max_output_tokens": 200})

        def until(condition: Callable[[], bool]) -> None:
            while not condition():
                seen.append(client.receive(60))
                talk.event(seen[-1])

        def kinds() -> list[str]:
            return [line.partition(":")[0] for line in said]

        def ask() -> None:
            talk.key()
            for samples in read_sound(str(question)):
                devices.on_sound(wav.to_s16(samples))
            talk.key()

        ask()
        until(lambda: devices.is_playing)
        client.send("session.update", session={"type": "realtime", "max_output_tokens": 8})
        ask()
        until(lambda: "Answer" in kinds() and kinds().count("You") == 2)
        until(lambda: talk.state is State.WAITING)
    assert any(event["type"] == "conversation.item.truncated" for event in seen)
    assert kinds().count("Listening …") == 2
    assert "Error" not in kinds(), said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--wav", "{q}"), 2, "--wav and --out"),
        (("--wav", "{q}", "--out", "a.xyz"), 2, ".mp3"),
        (("--wav", "none.wav", "--out", "a.wav"), 1, "none.wav: cannot be read"),
        (("--wav", __file__, "--out", "a.wav"), 1, "is not audio"),
        (("--wav", "{q}", "--out", "a.wav", "--model", "none.gguf"), 2, "none.gguf"),
        (("--wav", "{q}", "--out", "a.wav", "--url", "http://127.0.0.1:9"), 1, "no server"),
        (("--wav", "{q}", "--out", "a.wav", "--url", "x", "--whisper-model", "y"), 2, "--url"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    question: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    filled = [argument.replace("{q}", str(question)) for argument in arguments]
    done = run("talk", *filled, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith("Error: ") and says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "a.wav").exists()


def test_a_name_that_the_server_does_not_know_is_told(
    speech_server: RunningServer, question: Path, tmp_path: Path
) -> None:
    for option, name in (("--voice", "nobody"), ("--model", "nothing")):
        done = run(
            "talk", "--url", speech_server.url, "--wav", str(question), "--out", "a.wav",
            option, name, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ") and name in done.stderr
