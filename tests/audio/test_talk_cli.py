"""``ferrum-local talk`` from file to file, with a server of its own and with a running one."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferrum_local.audio import wav
from ferrum_local.cli.push_to_talk import PushToTalk, State
from ferrum_local.cli.realtime_client import RealtimeClient
from ferrum_local.cli.talk import read_sound, session_settings
from tests.audio.sounds import word_errors, words
from tests.audio.test_speech_cli import run
from tests.conftest import RunningServer

QUESTION = "Is it going to rain in the mountains tomorrow?"


@pytest.fixture(scope="module")
def question(speech_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spoken = speech_server.client().audio.speech.create(
        model="tts-1", voice="alloy", input=QUESTION, response_format="mp3"
    )
    path = tmp_path_factory.mktemp("talk") / "question.mp3"
    path.write_bytes(spoken.content)
    return path


def check_turn(server: RunningServer, stdout: str, answer: Path) -> None:
    """What the command prints is what was said, and what the file sounds like."""
    you, said, written = stdout.splitlines()
    assert word_errors(words(QUESTION), words(you.removeprefix("You: "))) <= 3, you
    assert written.startswith(answer.name)
    with wave.open(str(answer)) as sound:
        assert sound.getframerate() == 24_000
    heard = server.client().audio.transcriptions.create(
        model="tiny", file=answer, language="en"
    ).text  # fmt: skip
    answered = words(said.removeprefix("Answer: "))
    assert answered
    assert word_errors(answered, words(heard)) <= max(2, len(answered) // 4), (said, heard)


def test_a_turn_with_a_running_server(
    speech_server: RunningServer, question: Path, tmp_path: Path
) -> None:
    done = run(
        "talk", "--url", speech_server.url, "--wav", str(question), "--out", "answer.wav",
        "--instructions", "Answer in one short sentence.", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    check_turn(speech_server, done.stdout, tmp_path / "answer.wav")


def test_a_turn_with_a_server_of_its_own(
    speech_server: RunningServer, question: Path, tmp_path: Path
) -> None:
    done = run("talk", "--wav", str(question), "--out", "answer.wav", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    check_turn(speech_server, done.stdout, tmp_path / "answer.wav")


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
