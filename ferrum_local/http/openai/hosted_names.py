"""OpenAI's own names of models that hear, speak and talk: here they mean the first of its kind."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

HostedKind: TypeAlias = Literal["realtime", "transcription", "speech"]

_NAMES: dict[HostedKind, frozenset[str]] = {
    "realtime": frozenset(
        {
            "gpt-realtime", "gpt-realtime-mini", "gpt-realtime-1.5", "gpt-realtime-2",
            "gpt-realtime-2.1", "gpt-realtime-2.1-mini", "gpt-4o-realtime-preview",
            "gpt-4o-mini-realtime-preview", "gpt-audio", "gpt-audio-mini", "gpt-audio-1.5",
        }
    ),
    "transcription": frozenset(
        {
            "whisper-1", "gpt-transcribe", "gpt-live-transcribe", "gpt-4o-transcribe",
            "gpt-4o-mini-transcribe", "gpt-realtime-whisper",
        }
    ),
    "speech": frozenset({"tts-1", "tts-1-hd", "gpt-4o-mini-tts"}),
}  # fmt: skip
_DATE = re.compile(r"-[0-9]{4}-[0-9]{2}-[0-9]{2}$")


def without_hosted_name(name: str | None, kind: HostedKind) -> str | None:
    """What to ask the engine for; None: the first model.

    A date counts for nothing: ``gpt-4o-mini-tts-2025-12-15`` is ``gpt-4o-mini-tts``.
    """
    return None if name is None or _DATE.sub("", name) in _NAMES[kind] else name
