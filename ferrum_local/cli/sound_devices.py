"""Microphone and loudspeaker through PortAudio (the package sounddevice, extra ``talk``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ferrum_local.errors import FerrumError

BLOCK_S = 0.04  # of recorded sound at once
_FILES_INSTEAD = "Files work without: --wav question.wav --out answer.wav."


class SoundDevices:
    """The system's default microphone and loudspeaker, at their own rates; 16 bits, mono.

    Use it as a context manager; both are open within the block, the microphone mute at first.

    :raises FerrumError: the package, PortAudio or a device is missing; one line for people.
    """

    def __init__(self) -> None:
        sounddevice = _sounddevice()
        try:
            self.input_rate_hz = _rate_hz(sounddevice, "input")
            self.output_rate_hz = _rate_hz(sounddevice, "output")
        except (sounddevice.PortAudioError, ValueError) as error:
            raise FerrumError(
                f"There is no microphone or no loudspeaker here ({error}). {_FILES_INSTEAD}"
            ) from error
        self._sounddevice = sounddevice
        self._on_sound: Callable[[bytes], None] | None = None
        self._lock = threading.Lock()
        self._to_play = bytearray()
        self._n_played_bytes = 0
        self._streams: list[Any] = []

    def __enter__(self) -> SoundDevices:
        common: dict[str, Any] = {"channels": 1, "dtype": "int16"}
        try:
            self._streams = [
                self._sounddevice.RawInputStream(
                    samplerate=self.input_rate_hz,
                    blocksize=round(self.input_rate_hz * BLOCK_S),
                    callback=self._recorded,
                    **common,
                ),
                self._sounddevice.RawOutputStream(
                    samplerate=self.output_rate_hz, callback=self._wanted, **common
                ),
            ]
            for stream in self._streams:
                stream.start()
        except self._sounddevice.PortAudioError as error:
            self._close()
            raise FerrumError(
                f"The microphone or loudspeaker cannot be opened ({error}). {_FILES_INSTEAD}"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def record(self, on_sound: Callable[[bytes], None]) -> None:
        """Hand over what is heard, from PortAudio's thread, until ``mute``."""
        self._on_sound = on_sound

    def mute(self) -> None:
        self._on_sound = None

    def play(self, pcm: bytes) -> None:
        """Add to what is played; returns at once."""
        with self._lock:
            self._to_play += pcm

    @property
    def is_playing(self) -> bool:
        with self._lock:
            return bool(self._to_play)

    def stop_playing(self) -> float:
        """Be silent at once. :returns: seconds that were played since the last call."""
        with self._lock:
            played_s = self._n_played_bytes / 2 / self.output_rate_hz
            self._to_play.clear()
            self._n_played_bytes = 0
        return played_s

    def _recorded(self, data: Any, n_frames: int, time: Any, status: Any) -> None:
        on_sound = self._on_sound
        if on_sound is not None:
            on_sound(bytes(data))

    def _wanted(self, data: Any, n_frames: int, time: Any, status: Any) -> None:
        with self._lock:
            piece = bytes(self._to_play[: len(data)])
            del self._to_play[: len(piece)]
            self._n_played_bytes += len(piece)
        data[:] = piece.ljust(len(data), b"\0")

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams = []


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as error:
        raise FerrumError(
            "The microphone needs the package sounddevice (pip install sounddevice, where "
            "ferrum-local is installed). " + _FILES_INSTEAD
        ) from error
    except OSError as error:  # the package is there, the library that it wraps is not
        raise FerrumError(
            "The microphone needs the library PortAudio (libportaudio2 on Debian and Ubuntu). "
            + _FILES_INSTEAD
        ) from error
    return sounddevice


def _rate_hz(sounddevice: Any, kind: str) -> int:
    """:raises ValueError, PortAudioError: there is no such device."""
    return int(sounddevice.query_devices(kind=kind)["default_samplerate"])
