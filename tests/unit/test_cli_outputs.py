"""Files that commands write appear whole or not at all, and leave nothing beside them."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import TranscribedSegment, TranscriptionFacts
from ferrum_local.cli import embed, speech_engine, transcribe
from ferrum_local.cli.sound_files import write_file


def test_ctrl_c_during_speech_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Samples]:
        yield np.zeros(2400, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(interrupted(), 24_000, "wav", tmp_path / "out.wav")
    assert list(tmp_path.iterdir()) == []
    write_file([np.zeros(2400, np.float32)], 24_000, "wav", tmp_path / "out.wav")
    assert [path.name for path in tmp_path.iterdir()] == ["out.wav"]


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_ctrl_c_while_vectors_are_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    monkeypatch.setattr(embed, "_json_lines", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed._write(str(tmp_path / name), [], [])
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_cannot_take_its_place_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = TranscribedSegment(id=0, start=0.0, end=0.1, text=" Hello.")

    class Stream(list[TranscribedSegment]):
        facts = TranscriptionFacts(model_id="m", language="en", duration_s=0.1)

        def close(self) -> None:
            pass

    @contextmanager
    def engine(*_arguments: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(transcribe=lambda _request: Stream([segment]))

    monkeypatch.setattr(speech_engine, "speech_engine", engine)
    source = tmp_path / "a.wav"
    with wave.open(str(source), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(3200))
    (tmp_path / "a.txt").mkdir()
    options = {"format_": "txt", "language": None, "translate": False, "words": False}
    assert transcribe.run((str(source),), force=True, whisper_model=None, **options) == 1  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "a.wav"]
