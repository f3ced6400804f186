"""The microphone and the loudspeaker, on a PortAudio that is not there, or a scripted one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ferrum_local.cli.sound_devices import SoundDevices
from ferrum_local.errors import FerrumError

RATES = {"input": 16_000.0, "output": 48_000.0}


class PortAudioError(Exception):
    pass


class Stream:
    """Keeps what it was opened with; the test is PortAudio's thread."""

    def __init__(self, opened: list[Stream], fails: bool, **settings: Any) -> None:
        if fails:
            raise PortAudioError("device is busy")
        self.settings = settings
        self.running = False
        opened.append(self)

    def start(self) -> None:
        self.running = True

    def close(self) -> None:
        self.running = False


@pytest.fixture
def opened() -> list[Stream]:
    return []


@pytest.fixture
def sounddevice(monkeypatch: pytest.MonkeyPatch, opened: list[Stream]) -> ModuleType:
    module = ModuleType("sounddevice")
    values: dict[str, Any] = {
        "PortAudioError": PortAudioError,
        "query_devices": lambda kind: {"default_samplerate": RATES[kind]},
        "RawInputStream": lambda **settings: Stream(opened, False, **settings),
        "RawOutputStream": lambda **settings: Stream(opened, False, **settings),
    }
    module.__dict__.update(values)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    return module


def says(line: str) -> Any:
    return pytest.raises(FerrumError, match=line)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with says(r"pip install sounddevice.*--wav"):
        SoundDevices()


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    with says("libportaudio2.*--wav"):
        SoundDevices()


def test_a_machine_without_devices_is_told(sounddevice: ModuleType) -> None:
    def none_there(kind: str) -> None:
        raise PortAudioError("Error querying device -1")

    sounddevice.__dict__["query_devices"] = none_there
    with says("no microphone or no loudspeaker.*--wav"):
        SoundDevices()


def test_a_device_that_is_busy_is_told_and_all_is_closed(
    sounddevice: ModuleType, opened: list[Stream]
) -> None:
    sounddevice.__dict__["RawOutputStream"] = lambda **settings: Stream(opened, True, **settings)
    with says("device is busy"), SoundDevices():
        pass
    assert [stream.running for stream in opened] == [False]


def test_sound_is_recorded_when_wanted_and_played_in_order(
    sounddevice: ModuleType, opened: list[Stream]
) -> None:
    heard: list[bytes] = []
    with SoundDevices() as devices:
        microphone, loudspeaker = (SimpleNamespace(**s.settings) for s in opened)
        assert (microphone.samplerate, loudspeaker.samplerate) == (16_000, 48_000)
        microphone.callback(b"ab", 1, None, None)
        devices.record(heard.append)
        microphone.callback(b"cd", 1, None, None)
        devices.mute()
        microphone.callback(b"ef", 1, None, None)
        assert heard == [b"cd"]

        devices.play(b"1122")
        devices.play(b"33")
        buffer = bytearray(4)
        loudspeaker.callback(buffer, 2, None, None)
        assert (bytes(buffer), devices.is_playing) == (b"1122", True)
        loudspeaker.callback(buffer, 2, None, None)
        assert (bytes(buffer), devices.is_playing) == (b"33\0\0", False)
        assert devices.stop_playing() == 3 / 48_000
        assert devices.stop_playing() == 0.0
    assert not any(stream.running for stream in opened)
