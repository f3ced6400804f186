"""``/v1/audio/…``: transcriptions, translations, speech and voices."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

TranscriptionFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]


class TranslationForm(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A recording to be written down in English, as a multipart form.

    ``hotwords`` (or OpenAI's ``keywords``) are names that may occur; ``vad_filter`` false keeps
    what sounds like silence.
    """

    noun: ClassVar[str] = "form"

    file: bytes
    model: str | None = None
    prompt: str | None = None
    hotwords: str | None = None
    keywords: list[str] | None = None
    response_format: TranscriptionFormat | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    vad_filter: bool | None = None


class TranscriptionForm(TranslationForm, kw_only=True, forbid_unknown_fields=True):
    """The same in the language that is spoken; ``language`` is a code or an English name."""

    language: str | None = None
    timestamp_granularities: list[Literal["word", "segment"]] | None = None
    stream: bool | None = None
    include: list[Literal["logprobs"]] | None = None
    chunking_strategy: str | dict[str, Any] | None = None


class DurationUsage(msgspec.Struct, kw_only=True, frozen=True):
    """What OpenAI's whisper-1 counts. ``seconds`` of the recording, in full."""

    seconds: int
    type: Literal["duration"] = "duration"


class TokenUsage(msgspec.Struct, kw_only=True, frozen=True):
    """``input_tokens``: positions of the audio encoder, 50 a second; or phonemes read."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    type: Literal["tokens"] = "tokens"


class TranscriptLogprob(msgspec.Struct, kw_only=True, frozen=True):
    """One for each token of the text; ``token`` is its ``bytes``, as far as they are UTF-8."""

    token: str
    bytes: list[int]
    logprob: float


class Transcription(msgspec.Struct, kw_only=True, frozen=True):
    text: str
    logprobs: list[TranscriptLogprob] | UnsetType = UNSET
    usage: DurationUsage


class SegmentBody(msgspec.Struct, kw_only=True, frozen=True):
    """``start`` and ``end`` in seconds; ``seek`` is ``start`` in hundredths."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class WordBody(msgspec.Struct, kw_only=True, frozen=True):
    word: str
    start: float
    end: float


class VerboseTranscription(msgspec.Struct, kw_only=True, frozen=True):
    """``language``: an English name, ``unknown`` where nothing was said. ``duration`` in s."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[SegmentBody] | UnsetType = UNSET
    words: list[WordBody] | UnsetType = UNSET
    usage: DurationUsage


class TextDelta(
    msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="transcript.text.delta"
):
    delta: str
    logprobs: list[TranscriptLogprob] | UnsetType = UNSET


class TextDone(
    msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="transcript.text.done"
):
    text: str
    logprobs: list[TranscriptLogprob] | UnsetType = UNSET
    usage: TokenUsage


class VoiceReference(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "voice"

    id: str


class SpeechBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to speak: plain, Markdown, HTML or SSML (from ``<speak>`` on).

    ``normalize`` false reads the marks too. ``timestamps``: times of phrases, in ``sse`` only.
    """

    noun: ClassVar[str] = "object"

    input: str
    model: str | None = None
    voice: str | VoiceReference | None = None
    instructions: str | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    volume: Annotated[float, Meta(gt=0, le=4)] | None = None
    speaker: str | int | None = None
    language: str | None = None
    sample_rate: int | None = None
    normalize: bool | None = None
    stream: bool | None = None
    stream_format: Literal["audio", "sse"] | None = None
    timestamps: bool | None = None
    user: str | None = None


class PhraseTime(msgspec.Struct, kw_only=True, frozen=True):
    """Seconds from the beginning of the speech."""

    text: str
    start: float
    end: float


class AudioDelta(
    msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="speech.audio.delta"
):
    """``audio``: the next bytes of the file, in base64."""

    audio: str
    timestamps: list[PhraseTime] | UnsetType = UNSET


class AudioDone(
    msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag="speech.audio.done"
):
    """``input_tokens``: phonemes that were read; ``output_tokens``: frames of the voice."""

    usage: TokenUsage


class Voice(msgspec.Struct, kw_only=True, frozen=True):
    """``names``: what else it answers to, OpenAI's names among them. ``sample_rate`` in Hz."""

    id: str
    object: Literal["voice"] = "voice"
    name: str
    language: str
    quality: str
    sample_rate: int
    speakers: list[str]
    names: list[str]
    state: str


class VoiceList(msgspec.Struct, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[Voice]
