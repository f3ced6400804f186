"""``ferrum-local transcribe`` and ``speak``: files beside files, resumed batches, clear errors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import av
import pytest

from tests.audio.conftest import BASE, JFK_TEXT
from tests.audio.espeak import espeak_wav
from tests.audio.sounds import words
from tests.audio.test_transcriptions import SPANISH
from tests.conftest import ROOT


def run(
    *arguments: str, cwd: Path, stdin: str = "", path: str | None = None
) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")}
    env["PYTHONPATH"] = str(ROOT)
    if path is not None:
        env["PATH"] = path
    return subprocess.run(
        [sys.executable, "-m", "ferrum_local", *arguments],
        cwd=cwd, capture_output=True, text=True, input=stdin, env=env, check=False,
    )  # fmt: skip


def test_a_batch_writes_beside_the_files_and_goes_on(
    speech_models: None, jfk: Path, tmp_path: Path
) -> None:
    shutil.copy(jfk, tmp_path / "one.flac")
    shutil.copy(jfk.with_suffix(".mp3"), tmp_path / "two.mp3")
    (tmp_path / "bad.mp3").write_text("no sound")
    files = ("one.flac", "bad.mp3", "two.mp3")

    first = run("transcribe", *files, "--format", "srt", cwd=tmp_path)
    assert first.returncode == 1
    assert first.stderr == "Error: bad.mp3: is not audio or video that can be read\n"
    for name in ("one.srt", "two.srt"):
        assert name in first.stdout
        lines = (tmp_path / name).read_text().splitlines()
        assert "-->" in lines[1]
        spoken = " ".join(ln for ln in lines if "-->" not in ln and not ln.isdecimal())
        assert words(spoken) == words(JFK_TEXT)

    (tmp_path / "one.srt").unlink()
    again = run("transcribe", "one.flac", "two.mp3", "--format", "srt", cwd=tmp_path)
    assert again.returncode == 0
    assert "one.srt" in again.stdout and "two.srt" not in again.stdout
    assert again.stderr == "two.srt is there already (--force writes it again)\n"


@pytest.mark.skipif(os.name != "posix", reason="a terminal as on POSIX")
def test_a_terminal_sees_how_far_and_how_fast_it_is(speech_models: None, tmp_path: Path) -> None:
    """Spanish, written down in English."""
    (tmp_path / "es.wav").write_bytes(espeak_wav(SPANISH, "es"))
    terminal, stderr = os.openpty()
    arguments = ["transcribe", "es.wav", "--translate", "--whisper-model", str(BASE)]
    done = subprocess.run(
        [sys.executable, "-m", "ferrum_local", *arguments], cwd=tmp_path, stderr=stderr,
        stdout=subprocess.PIPE, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(stderr)
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert done.returncode == 0, shown
    assert re.search(r"es\.wav  \[#+\.*\] +\d+%  \d+\.\dx", shown), shown
    english = words((tmp_path / "es.txt").read_text())
    assert {"brother's", "house"} <= set(english), english


def test_words_in_json_and_as_cues(speech_models: None, jfk: Path, tmp_path: Path) -> None:
    shutil.copy(jfk, tmp_path / "a.flac")
    for format_ in ("json", "vtt"):
        done = run("transcribe", "a.flac", "--format", format_, "--words", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "a.json").read_text())
    assert [words(w["word"])[0] for w in body["words"]] == words(JFK_TEXT)
    assert body["language"] == "english" and body["segments"]
    assert (tmp_path / "a.vtt").read_text().count("-->") == len(words(JFK_TEXT))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("a.wav", "--words"), "--words needs"),
        (("a.txt",), "is itself a .txt file"),
        (("a.wav", "a.mp3"), "another file would be written"),
        (("a.wav", "--language", "klingon"), "code like de"),
        (("a.wav", "--translate", "--language", "de"), "--translate"),
        (("a.wav", "--whisper-model", "nowhere"), "no such directory"),
    ],
)
def test_what_cannot_be_transcribed_is_told_at_once(
    speech_models: None, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = run("transcribe", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ") and says in done.stderr
    assert done.stderr.count("\n") == 1


def test_speak_writes_what_the_name_says(speech_models: None, tmp_path: Path) -> None:
    done = run("speak", "Hello there.", "-o", "out.mp3", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out.mp3 (")
    with av.open(str(tmp_path / "out.mp3")) as container:
        assert container.streams.audio[0].codec_context.name == "mp3float"
    done = run("speak", "-o", "out.wav", cwd=tmp_path, stdin="This came in a pipe.")
    assert done.returncode == 0
    data = (tmp_path / "out.wav").read_bytes()
    assert int.from_bytes(data[40:44], "little") == len(data) - 44
    assert not list(tmp_path.glob("*.part"))


def test_speak_plays_with_what_there_is(speech_models: None, tmp_path: Path) -> None:
    """A player that only notes the file's size stands for the loudspeaker."""
    player = tmp_path / "aplay"
    player.write_text(f'#!/bin/sh\n/usr/bin/wc -c < "$2" > {tmp_path}/played\n')
    player.chmod(0o755)
    done = run("speak", "Hello.", "--play", cwd=tmp_path, path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "played").read_text()) > 10_000
    player.unlink()
    done = run("speak", "Hello.", "--play", cwd=tmp_path, path=str(tmp_path))
    assert done.returncode == 1 and "can play sound" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Hi.",), "-o FILE"),
        (("Hi.", "-o", "a.xyz"), ".mp3"),
        ((" ", "-o", "a.mp3"), "no text"),
        (("🙂", "-o", "a.mp3"), "nothing in it"),
        (("Hi.", "-o", "a.mp3", "--speed", "9"), "0.25"),
        (("Hi.", "-o", "a.mp3", "--voice", "none.onnx"), "no such file"),
        (("Hi.", "-o", "a.mp3", "--speaker", "ann"), "speaker"),
    ],
)
def test_what_cannot_be_spoken_is_told(
    speech_models: None, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = run("speak", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ") and says in done.stderr
    assert not (tmp_path / "a.mp3").exists()
