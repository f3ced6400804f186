"""One Piper voice: loading it, and what it can do."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import TtsOptions
from ferrum_local.errors import InvalidRequest, ModelLoadError
from ferrum_local.languages import language_code
from ferrum_local.processes import can_start_itself, helper_command
from ferrum_local.tts.files import read_voice_config
from ferrum_local.tts.session import VoiceSession

if TYPE_CHECKING:
    from piper import PiperVoice

logger = logging.getLogger(__name__)

_CHECK_TIMEOUT_S = 120.0
_MAX_THREADS = 4
MAX_PHONEMES = 400  # about 30 s of speech; a written part of 300 letters has some 350


def check_in_child(path: str) -> None:
    """Speak one word in a process of its own.

    espeak-ng and ONNX end the whole process for some faults (no data files, for one); a server
    that has other models must survive that.

    :raises ModelLoadError: with what the child said.
    """
    if not can_start_itself():
        logger.debug("%s is not tried out: this program cannot start a process for it", path)
        return
    try:
        done = subprocess.run(
            helper_command("ferrum_local.tts.voice:speak_one_word", path),
            capture_output=True, text=True, errors="replace", timeout=_CHECK_TIMEOUT_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ModelLoadError(f"{path}: the voice did not say a word in time") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        raise ModelLoadError(f"{path}: the voice cannot speak here: {said}")


def speak_one_word(path: str) -> str | None:
    """What the child does. :returns: its exit code as ``sys.exit`` takes it."""
    samples, _ = Voice(path, TtsOptions(threads=1)).speak("Ready.")
    return None if len(samples) else "no sound came out"


class Voice:
    """A loaded voice. ``speak`` may be called from several threads."""

    def __init__(self, path: str, options: TtsOptions) -> None:
        """:raises ModelLoadError: the files are no voice, or damaged."""
        config = read_voice_config(path)
        self._piper = _load(path, config, n_threads(options))
        self.sample_rate_hz: int = self._piper.config.sample_rate
        self.hop_length: int = self._piper.config.hop_length
        language = config.get("language", {})
        code = language.get("code") if isinstance(language, dict) else None
        self.language = str(code or self._piper.config.espeak_voice).replace("_", "-")
        self.language_family = language_code(self.language) or self.language.split("-")[0]
        self.quality = str(config["audio"].get("quality", ""))
        ids = self._piper.config.speaker_id_map
        self.speakers: tuple[str, ...] = tuple(sorted(ids, key=lambda name: ids[name]))

    def speaker_id(self, name: str | None) -> int | None:
        """:raises InvalidRequest: the voice has no such speaker."""
        n_speakers = self._piper.config.num_speakers
        if name is None:
            return None
        if name in self.speakers:
            return int(self._piper.config.speaker_id_map[name])
        if name.isdecimal() and int(name) < max(1, n_speakers):
            return int(name)
        known = ", ".join(self.speakers) or (f"0 to {n_speakers - 1}" if n_speakers > 1 else "0")
        raise InvalidRequest(
            f"speaker: this voice has no {name[:60]!r}; known: {known}", param="speaker"
        )

    def speak(
        self,
        text: str,
        *,
        speaker_id: int | None = None,
        speed: float = 1.0,
        volume: float = 1.0,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[Samples, int]:
        """What ``text`` sounds like, and how many phoneme ids were read for it.

        :param check: called now and then; what it raises ends the work.
        """
        from piper import SynthesisConfig

        config = SynthesisConfig(
            speaker_id=speaker_id,
            length_scale=self._piper.config.length_scale / speed,
            volume=volume,
        )
        chunks = []
        for chunk in self._piper.synthesize(text, config):
            chunks.append(chunk)
            check()
        if not chunks:
            return np.zeros(0, np.float32), 0
        n_ids = sum(len(chunk.phoneme_ids) for chunk in chunks)
        samples = [np.atleast_1d(chunk.audio_float_array) for chunk in chunks]
        return np.concatenate(samples).astype(np.float32, copy=False), n_ids


def n_threads(options: TtsOptions) -> int:
    """All cores, up to four: a clause takes a tenth of a second, and the first one is waited
    for."""
    return options.threads or min(_MAX_THREADS, os.cpu_count() or 1)


def n_workers(options: TtsOptions) -> int:
    """Two at once, so that a short answer need not wait for each clause of a long text."""
    return options.workers or min(2, os.cpu_count() or 1)


def short_enough(phonemes: Sequence[str]) -> list[list[str]]:
    """A sentence's phonemes in pieces of at most ``MAX_PHONEMES``, cut between words if possible.

    Memory and time grow with what is spoken, not with what is written: ``1/1/1`` has few
    characters and many words.
    """
    pieces = []
    rest = list(phonemes)
    while len(rest) > MAX_PHONEMES:
        blanks = [i for i, phoneme in enumerate(rest[:MAX_PHONEMES]) if phoneme == " "]
        at = blanks[-1] + 1 if blanks else MAX_PHONEMES
        pieces.append(rest[:at])
        rest = rest[at:]
    return [*pieces, rest]


def _load(path: str, config: dict[str, Any], n_threads: int) -> PiperVoice:
    from piper import PiperConfig, PiperVoice

    class BoundedVoice(PiperVoice):
        def phonemize(self, text: str) -> list[list[str]]:
            return [piece for s in super().phonemize(text) for piece in short_enough(s)]

    try:
        session: Any = VoiceSession(path, n_threads=n_threads)
        return BoundedVoice(session=session, config=PiperConfig.from_dict(config))
    except Exception as error:  # onnxruntime has an exception class for each sort of fault
        raise ModelLoadError(f"{path}: {str(error).splitlines()[0]}") from error
