"""Segments in OpenAI's shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Literal

from msgspec import UNSET, UnsetType

from ferrum_local.audio_types import TranscribedSegment, TranscriptionFacts
from ferrum_local.http.openai.logprobs import chat_logprobs
from ferrum_local.http.openai.schemas.audio import (
    DurationUsage,
    SegmentBody,
    TranscriptLogprob,
    VerboseTranscription,
    WordBody,
)
from ferrum_local.languages import NAME_BY_CODE

UNKNOWN_LANGUAGE = "unknown"


def verbose_transcription(
    task: Literal["transcribe", "translate"],
    segments: Sequence[TranscribedSegment],
    facts: TranscriptionFacts,
    granularities: Set[str],
) -> VerboseTranscription:
    """:param granularities: ``segment``, ``word`` or both."""
    return VerboseTranscription(
        task=task,
        language=NAME_BY_CODE.get(facts.language or "", facts.language or UNKNOWN_LANGUAGE),
        duration=round(facts.duration_s, 3),
        text="".join(segment.text for segment in segments).strip(),
        segments=[_segment(s) for s in segments] if "segment" in granularities else UNSET,
        words=_words(segments) if "word" in granularities else UNSET,
        usage=duration_usage(facts),
    )


def duration_usage(facts: TranscriptionFacts) -> DurationUsage:
    return DurationUsage(seconds=math.ceil(facts.duration_s))


def _segment(segment: TranscribedSegment) -> SegmentBody:
    return SegmentBody(
        id=segment.id,
        seek=round(segment.start * 100),
        start=segment.start,
        end=segment.end,
        text=segment.text,
        tokens=list(segment.tokens),
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_prob=segment.no_speech_prob,
    )


def _words(segments: Sequence[TranscribedSegment]) -> list[WordBody]:
    return [
        WordBody(word=word.word.strip(), start=word.start, end=word.end)
        for segment in segments
        for word in segment.words
    ]


def token_logprobs(
    segments: Sequence[TranscribedSegment], wanted: bool
) -> list[TranscriptLogprob] | UnsetType:
    if not wanted:
        return UNSET
    return [
        TranscriptLogprob(token=entry.token, bytes=entry.bytes, logprob=entry.logprob)
        for segment in segments
        for entry in chat_logprobs(segment.logprobs).content
    ]
