"""``ferrum-local talk`` from file to file, with a server of its own and with a running one."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest

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
    assert word_errors(words(QUESTION), words(you.removeprefix("You: "))) <= 1, you
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
