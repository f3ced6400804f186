"""Segments as SubRip and WebVTT."""

from __future__ import annotations

from collections.abc import Iterable

from ferrum_local.audio_types import TranscribedSegment


def srt(segments: Iterable[TranscribedSegment]) -> str:
    return "".join(
        f"{i}\n{_time(s.start, ',')} --> {_time(s.end, ',')}\n{_cue(s.text)}\n\n"
        for i, s in enumerate(segments, 1)
    )


def vtt(segments: Iterable[TranscribedSegment]) -> str:
    cues = (
        f"{_time(s.start, '.')} --> {_time(s.end, '.')}\n{_escaped(_cue(s.text))}\n\n"
        for s in segments
    )
    return "WEBVTT\n\n" + "".join(cues)


def _time(seconds: float, point: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def _cue(text: str) -> str:
    """On one line, and without the arrow that would begin another cue."""
    return " ".join(text.replace("-->", "->").split())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def word_cues(segments: Iterable[TranscribedSegment]) -> list[TranscribedSegment]:
    """One cue for each word."""
    return [
        TranscribedSegment(id=segment.id, start=word.start, end=word.end, text=word.word)
        for segment in segments
        for word in segment.words
    ]
