"""One server for all speech tests: SmolLM2, Whisper tiny.en and base, and the steady voice joe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audio.sounds import find_shared_audio
from tests.conftest import ROOT, SMOLLM2, VOICE, RunningServer, serve

TINY = ROOT / "models" / "whisper-tiny.en"
BASE = ROOT / "models" / "whisper-base"
JFK_TEXT = (
    "and so my fellow americans ask not what your country can do for you ask what you can do for "
    "your country"
)


@pytest.fixture(scope="session")
def speech_models() -> None:
    missing = [path.name for path in (TINY, BASE, VOICE) if not path.exists()]
    if missing:
        pytest.skip(f"speech models are not here: {', '.join(missing)}; run `make setup-test`")


@pytest.fixture(scope="session")
def speech_server(speech_models: None, steady_voice: Path) -> Iterator[RunningServer]:
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--ctx-size", "512", "--slots", "2",
        "--whisper-model", f"tiny={TINY}", "--whisper-model", f"base={BASE}",
        "--voice", f"joe={steady_voice}", "--voice-name", "nova=joe",
        "--max-upload-mb", "16", "--max-audio-length", "20m",
    )  # fmt: skip


@pytest.fixture(scope="session")
def jfk() -> Path:
    """Eleven seconds of a real recording, in the public domain."""
    path = find_shared_audio("jfk.flac")
    if path is None:
        pytest.skip("the recording shared/audio/jfk.flac is not beside the project")
    return path
