"""One server for all realtime tests: SmolLM2 writes, Whisper tiny.en hears, joe speaks steadily."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.audio.conftest import TINY
from tests.conftest import SMOLLM2, RunningServer, serve

Say = Callable[[str], bytes]


@pytest.fixture(scope="session")
def voice_server(steady_voice: Path) -> Iterator[RunningServer]:
    missing = [path.name for path in (SMOLLM2, TINY) if not path.exists()]
    if missing:
        pytest.skip(f"models are not here: {', '.join(missing)}; run `make setup-test`")
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--ctx-size", "2048", "--slots", "6",
        "--whisper-model", f"tiny={TINY}", "--voice", f"joe={steady_voice}",
    )  # fmt: skip


@pytest.fixture(scope="session")
def spoken(voice_server: RunningServer) -> Say:
    """What joe says of a text: 16-bit samples at 24 kHz."""
    client = voice_server.client()

    @cache
    def say(text: str) -> bytes:
        return client.audio.speech.create(
            model="tts-1", voice="alloy", input=text, response_format="pcm"
        ).read()

    return say
