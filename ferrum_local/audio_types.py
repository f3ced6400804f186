"""Value types of speech: what is transcribed and spoken, and what comes of it.

Frozen structs beside those of ``types.py``; safe to pass between threads.
"""

from __future__ import annotations

from typing import BinaryIO, Literal

import msgspec

from ferrum_local.types import ModelSpec, Priority, TokenLogprob

WHISPER_RATE_HZ = 16_000
VAD_WINDOW_SAMPLES = 512  # for each of which there is one probability of speech; at 16 kHz

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class SttOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Whisper models run. None: decided from the machine, see ``stt.model``."""

    threads: int | None = None  # of one transcription
    workers: int | None = None  # transcriptions at once
    max_queue: int = 64  # that may wait for a worker
    max_duration_s: float = 4 * 3600.0  # of one recording


class TtsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How voices run. ``names``: what clients say (``alloy``) → the id of a voice."""

    threads: int | None = None
    workers: int | None = None  # clauses synthesised at once
    max_queue: int = 64
    max_chars: int = 100_000  # of one text
    names: dict[str, str] = {}


class AudioConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The speech models to serve. ``whisper_models`` are directories, ``voices`` ONNX files."""

    whisper_models: tuple[ModelSpec, ...] = ()
    voices: tuple[ModelSpec, ...] = ()
    stt: SttOptions = SttOptions()
    tts: TtsOptions = TtsOptions()

    def __bool__(self) -> bool:
        return bool(self.whisper_models or self.voices)


class VadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as speech: probability above ``threshold``; a pause from ``silence_ms`` on;
    ``padding_ms`` are kept on both sides of speech."""

    threshold: float = 0.5
    padding_ms: int = 400
    silence_ms: int = 160


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One recording to write down.

    ``file`` is seekable and stays the caller's to close, after the transcription ended.
    ``language`` is a code as ``de``; None: detected. ``temperature`` 0 is beam search that
    falls back to higher ones where the result is poor. ``vad`` None: everything counts as
    speech. ``early``: the first words are wanted
    soon, even if the whole takes longer.
    """

    id: str
    model_id: str
    file: BinaryIO
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    temperature: float = 0.0
    word_timestamps: bool = False
    logprobs: bool = False
    vad: VadSettings | None = VadSettings()
    early: bool = False
    metadata: dict[str, str] = {}


class LiveTranscriptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of speech to write down while it is spoken; fields as ``TranscriptionRequest``."""

    id: str
    model_id: str
    language: str | None = None
    prompt: str | None = None
    beam_size: int = 5
    metadata: dict[str, str] = {}


class TranscribedWord(msgspec.Struct, frozen=True):
    """Times in seconds of the recording. ``probability``: the mean of its tokens'."""

    word: str
    start: float
    end: float
    probability: float


class TranscribedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of speech; ``start`` and ``end`` in seconds of the recording.

    ``text`` begins with the space that Whisper puts before a word. The measures are Whisper's.
    ``words`` and ``logprobs`` are there if they were asked for; the bytes of ``logprobs`` are
    those of ``text``.
    """

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[TranscribedWord, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class TranscriptionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording once it was heard. ``language``: a code; None: no speech."""

    model_id: str
    language: str | None
    duration_s: float


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One text to speak, with the voice ``model_id``.

    ``speaker``: name or number, for voices that have several. ``volume`` 1 is the voice's own.
    ``early``: the first clause is wanted as soon as possible. ``priority``: whose clause the
    voice speaks next.
    """

    id: str
    model_id: str
    text: str
    speaker: str | None = None
    speed: float = 1.0
    volume: float = 1.0
    normalize: bool = True
    early: bool = False
    priority: Priority = Priority.INTERACTIVE
    metadata: dict[str, str] = {}


class SpokenPart(msgspec.Struct, frozen=True, kw_only=True):
    """One clause or pause, as it is heard. ``pcm``: float32 samples, little-endian, mono.

    ``start_s`` is where it begins in the whole. ``n_tokens``: phoneme ids that were read.
    ``written``: what of a text that came in pieces it speaks, as it stood there; joined they are
    the text, up to an end that has no sound.
    """

    text: str
    pcm: bytes
    start_s: float
    end_s: float
    n_tokens: int = 0
    written: str = ""


class VoiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An installed voice. ``names``: what it answers to beside its id."""

    id: str
    language: str
    quality: str
    sample_rate: int
    speakers: tuple[str, ...]
    names: tuple[str, ...]
    state: str
