"""What a session is set to: OpenAI's session object, checked, with what is left out filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ferrum_local.audio import g711
from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.validation import invalid, parse_request, unsupported
from ferrum_local.http.realtime.turns import TurnSettings

PCM_RATE_HZ = 24_000
DEFAULT_INSTRUCTIONS = (
    "You are a helpful voice assistant. Answer in one or two short sentences, in plain words "
    "that sound good when they are spoken."
)
MAX_OUTPUT_TOKENS = 4096  # OpenAI's limit, beside "inf"
# How long a pause may be, in ms, before the speaker is taken to be done. OpenAI judges by the
# words; here it is the length of the pause alone that ends a turn.
_SEMANTIC_SILENCE_MS = {"low": 1200, "medium": 800, "high": 500, "auto": 800}
Modality = Literal["text", "audio"]
OutputTokens = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]
Temperature = Annotated[float, Meta(ge=0, le=2)]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    noun: ClassVar[str] = "object"


class AudioFormat(_Fields, frozen=True):
    """``rate`` in Hz is for ``audio/pcm``, 16-bit; the others have 8,000."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Annotated[int, Meta(ge=8_000, le=96_000)] | None = None

    @property
    def rate_hz(self) -> int:
        return g711.RATE_HZ if self.law else (self.rate or PCM_RATE_HZ)

    @property
    def law(self) -> g711.Law | None:
        laws: dict[str, g711.Law] = {"audio/pcmu": "mu", "audio/pcma": "a"}
        return laws.get(self.type)

    @property
    def sample_bytes(self) -> int:
        return 1 if self.law else 2


class TurnDetection(_Fields, frozen=True):
    """Both kinds in one; ``eagerness`` is for ``semantic_vad``, the numbers for ``server_vad``."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5_000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=100, le=10_000)] = 500
    idle_timeout_ms: Annotated[int, Meta(ge=1_000, le=600_000)] | None = None
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True

    @property
    def turns(self) -> TurnSettings:
        silence_ms = self.silence_duration_ms
        if self.type == "semantic_vad":
            silence_ms = _SEMANTIC_SILENCE_MS[self.eagerness]
        return TurnSettings(
            threshold=self.threshold,
            prefix_padding_ms=self.prefix_padding_ms,
            silence_duration_ms=silence_ms,
        )

    def body(self) -> dict[str, Any]:
        shared = {
            "type": self.type,
            "create_response": self.create_response,
            "interrupt_response": self.interrupt_response,
        }
        if self.type == "semantic_vad":
            return {**shared, "eagerness": self.eagerness}
        return {
            **shared,
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_padding_ms,
            "silence_duration_ms": self.silence_duration_ms,
            "idle_timeout_ms": self.idle_timeout_ms,
        }


class Transcription(_Fields, frozen=True):
    """Whether transcripts are sent, and hints for them. ``delay`` changes nothing here."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    delay: str | None = None


class AudioInput(_Fields, frozen=True):
    format: AudioFormat = AudioFormat()
    transcription: Transcription | None = None
    noise_reduction: dict[str, Any] | None = None
    turn_detection: TurnDetection | None = TurnDetection()


class VoiceId(_Fields, frozen=True):
    id: str


class AudioOutput(_Fields, frozen=True):
    format: AudioFormat = AudioFormat()
    voice: str | VoiceId | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


class Audio(_Fields, frozen=True):
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class Tool(_Fields, frozen=True):
    noun: ClassVar[str] = "tool"

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedTool(_Fields, frozen=True):
    type: Literal["function"]
    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class Reasoning(_Fields, frozen=True):
    effort: str | None = None


class Truncation(_Fields, frozen=True):
    """Old messages go when a conversation is too long for the model, down to this part of it."""

    type: Literal["retention_ratio"] = "retention_ratio"
    retention_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.8
    token_limits: dict[str, int] | None = None


class SessionSettings(_Fields, frozen=True):
    """OpenAI's fields, and ``temperature``, which its older sessions had."""

    type: Literal["realtime", "transcription"] = "realtime"
    model: str | None = None
    output_modalities: Annotated[list[Modality], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["audio"]
    )
    instructions: str = DEFAULT_INSTRUCTIONS
    audio: Audio = Audio()
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    max_output_tokens: OutputTokens = "inf"
    temperature: Temperature | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | Truncation = "auto"
    tracing: Any = None
    prompt: dict[str, Any] | None = None
    include: list[str] | None = None

    @property
    def speaks(self) -> bool:
        return "audio" in self.output_modalities

    def body(self, session_id: str) -> dict[str, Any]:
        """As ``session.created`` shows it."""
        audio_input = {
            "format": format_body(self.audio.input.format),
            "transcription": None,
            "noise_reduction": None,
            "turn_detection": None,
        }
        if self.audio.input.transcription is not None:
            audio_input["transcription"] = msgspec.to_builtins(self.audio.input.transcription)
        if self.audio.input.turn_detection is not None:
            audio_input["turn_detection"] = self.audio.input.turn_detection.body()
        about = {"id": session_id, "type": self.type, "expires_at": None, "include": None}
        if self.type == "transcription":
            return {
                **about,
                "object": "realtime.transcription_session",
                "audio": {"input": audio_input},
            }
        audio_output = {
            "format": format_body(self.audio.output.format),
            "voice": self.audio.output.voice_name,
            "speed": self.audio.output.speed,
        }
        return {
            **about,
            "object": "realtime.session",
            "model": self.model,
            "output_modalities": self.output_modalities,
            "instructions": self.instructions,
            "audio": {"input": audio_input, "output": audio_output},
            "tools": msgspec.to_builtins(self.tools),
            "tool_choice": msgspec.to_builtins(self.tool_choice),
            "max_output_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "truncation": msgspec.to_builtins(self.truncation),
            "reasoning": msgspec.to_builtins(self.reasoning),
            "tracing": None,
            "prompt": None,
        }


def format_body(format_: AudioFormat) -> dict[str, Any]:
    if format_.law:
        return {"type": format_.type}
    return {"type": format_.type, "rate": format_.rate_hz}


def updated(settings: SessionSettings, update: object) -> SessionSettings:
    """``settings`` with what ``update`` (a ``session`` as clients send it) names.

    :raises ApiError: with the path of the field at fault.
    """
    if not isinstance(update, dict):
        raise invalid("session", "expected an object")
    update = _in_new_words(update)
    current = msgspec.to_builtins(settings)
    if update.get("type") == "transcription" and settings.type != "transcription":
        current["audio"]["input"]["transcription"] = {}
    try:
        result = parse_request(_merged(current, update), SessionSettings)
        _check(result)
    except ApiError as error:
        raise under("session", error) from error
    return result


def under(name: str, error: ApiError) -> ApiError:
    """The same fault, told of a field within ``name``."""
    message = f"{name}.{error.message}" if error.param else error.message
    param = f"{name}.{error.param}" if error.param else name
    return ApiError(message, status=error.status, param=param, code=error.code)


def check_modalities(modalities: list[Modality]) -> None:
    if len(set(modalities)) > 1:
        raise invalid(
            "output_modalities",
            'expected ["audio"], which comes with its transcript, or ["text"], not both',
        )


def _check(settings: SessionSettings) -> None:
    check_modalities(settings.output_modalities)
    if settings.audio.input.noise_reduction is not None:
        raise unsupported("audio.input.noise_reduction", "is not supported; expected null")
    if settings.prompt is not None:
        raise unsupported("prompt", "stored prompts are not supported; expected null")
    if isinstance(settings.truncation, Truncation) and settings.truncation.token_limits:
        raise unsupported("truncation.token_limits", "is not supported; expected null")
    if settings.include:
        raise unsupported("include", f"{settings.include[0][:60]} is not supported")
    for name in ("input", "output"):
        format_ = getattr(settings.audio, name).format
        if format_.law and format_.rate not in (None, g711.RATE_HZ):
            raise invalid(f"audio.{name}.format.rate", f"{format_.type} has {g711.RATE_HZ} Hz")


def _merged(current: dict[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    """``audio`` and its two sides are merged by field; all else is replaced as a whole."""
    result = {**current, **update}
    audio = update.get("audio")
    if isinstance(audio, dict):
        result["audio"] = {**current["audio"], **audio}
        for side in ("input", "output"):
            given = audio.get(side)
            if isinstance(given, dict):
                result["audio"][side] = {**current["audio"][side], **given}
    return result


_OLD_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


def _old_format(value: object) -> object:
    return {"type": _OLD_FORMATS.get(value, value)} if isinstance(value, str) else value


def _old_modalities(value: object) -> object:
    """Audio came with its text, and both were named."""
    return ["audio"] if isinstance(value, list) and "audio" in value else value


# The fields of the protocol before it was released: where they are now.
_OLD_FIELDS: dict[str, tuple[tuple[str, ...], Callable[[object], object]]] = {
    "modalities": (("output_modalities",), _old_modalities),
    "voice": (("audio", "output", "voice"), lambda value: value),
    "speed": (("audio", "output", "speed"), lambda value: value),
    "input_audio_format": (("audio", "input", "format"), _old_format),
    "output_audio_format": (("audio", "output", "format"), _old_format),
    "input_audio_transcription": (("audio", "input", "transcription"), lambda value: value),
    "input_audio_noise_reduction": (("audio", "input", "noise_reduction"), lambda value: value),
    "turn_detection": (("audio", "input", "turn_detection"), lambda value: value),
    "max_response_output_tokens": (("max_output_tokens",), lambda value: value),
}


def _in_new_words(update: dict[str, Any]) -> dict[str, Any]:
    result = {name: value for name, value in update.items() if name not in _OLD_FIELDS}
    for name, (path, convert) in _OLD_FIELDS.items():
        if name not in update:
            continue
        place = result
        for step in path[:-1]:
            inner = place.get(step)
            place[step] = place = dict(inner) if isinstance(inner, dict) else {}
        place[path[-1]] = convert(update[name])
    return result
