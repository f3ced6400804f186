"""OpenAI's own names of realtime and listening models: here they mean the first one loaded."""

from __future__ import annotations

_CHAT_PREFIXES = ("gpt-realtime", "gpt-4o-realtime", "gpt-4o-mini-realtime", "gpt-audio")
_WHISPER_PREFIXES = (
    "whisper-1", "gpt-transcribe", "gpt-live-transcribe", "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe", "gpt-realtime-whisper",
)  # fmt: skip


def chat_name(name: str | None) -> str | None:
    """What to ask the engine for; None: the first chat model."""
    return None if name is None or name.startswith(_CHAT_PREFIXES) else name


def whisper_name(name: str | None) -> str | None:
    """What to ask the engine for; None: the first Whisper model."""
    return None if name is None or name.startswith(_WHISPER_PREFIXES) else name
