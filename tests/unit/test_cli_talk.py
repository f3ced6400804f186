"""Whom ``ferrum-local talk`` gives which key."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest
from click.testing import CliRunner

from ferrum_local.cli import realtime_client
from ferrum_local.cli.app import cli
from ferrum_local.errors import FerrumError


@pytest.mark.parametrize(
    ("url", "options", "key"),
    [
        ("https://example.com", [], None),
        ("https://example.com/127.0.0.1", [], None),
        ("wss://example.com", ["--api-key", "theirs"], "theirs"),
        ("http://127.0.0.1:8000", [], "secret"),
        ("ws://[::1]:8000/v1", [], "secret"),
        ("localhost:8000", ["--api-key", "theirs"], "theirs"),
    ],
)
@pytest.mark.parametrize("where", ["variable", "file"])
def test_the_key_of_this_machine_goes_nowhere_else(
    url: str,
    options: list[str],
    key: str | None,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FERRUM_API_KEY", raising=False)
    if where == "variable":
        monkeypatch.setenv("FERRUM_API_KEY", "secret")
    else:
        Path("keys.txt").write_text("secret\n")
        Path("keys.txt").chmod(0o600)
        Path("ferrum.toml").write_text('api_key_file = "keys.txt"\n')
    with wave.open("question.wav", "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(24_000)
        sound.writeframes(bytes(4800))
    given: list[str | None] = []

    def note(_url: str, *, api_key: str | None = None, model: str | None = None) -> None:
        given.append(api_key)
        raise FerrumError("far enough")

    monkeypatch.setattr(realtime_client, "RealtimeClient", note)
    result = CliRunner().invoke(
        cli, ["talk", "--url", url, "--wav", "question.wav", "--out", "a.wav", *options],
        standalone_mode=False,
    )  # fmt: skip
    assert str(result.exception) == "far enough"
    assert given == [key]
