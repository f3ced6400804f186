"""Which of OpenAI's model names stand for a model of this server."""

from __future__ import annotations

import pytest

from ferrum_local.http.openai.hosted_names import HostedKind, without_hosted_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("whisper-1", "transcription"),
        ("gpt-4o-mini-transcribe-2025-12-15", "transcription"),
        ("gpt-4o-mini-tts-2025-12-15", "speech"),
        ("gpt-realtime", "realtime"),
        ("gpt-4o-realtime-preview-2024-12-17", "realtime"),
    ],
)
def test_openais_names_mean_the_first_model_of_their_kind(name: str, kind: HostedKind) -> None:
    assert without_hosted_name(name, kind) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("whisper-1-german", "transcription"),
        ("gpt-realtime-of-my-own", "realtime"),
        ("gpt-realtime", "speech"),
        ("tts-1-2025", "speech"),
    ],
)
def test_names_that_only_look_alike_are_asked_for(name: str, kind: HostedKind) -> None:
    assert without_hosted_name(name, kind) == name


def test_no_name_is_no_name() -> None:
    assert without_hosted_name(None, "realtime") is None
