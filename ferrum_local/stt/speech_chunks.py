"""Cuts a recording of any length into chunks of speech that fit Whisper's window of 30 s."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

import msgspec
import numpy as np

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import WHISPER_RATE_HZ

WHISPER_WINDOW_S = 30.0  # what the model hears at a time
# With less silence at its end Whisper often takes the last phrase for one that goes on, leaves it
# out, and it has to be decoded again: 6 of 12 chunks of up to 30 s, none of 13 up to 27 s.
CHUNK_S = 27.0
N_CHUNK = int(CHUNK_S * WHISPER_RATE_HZ)
WINDOW_S = 300.0  # looked at together; bounds memory, whatever the length
EARLY_WINDOW_S = 32.0  # the first window where the first words are wanted soon
_KEPT_PAUSE_S = 2.0
_ENDED_S = 3.0  # of silence, after which a group of spans does not go on
_QUIET_S = 0.02  # how long a moment is, when the quietest is looked for
_SEARCH_S = 3.0  # how far before the end of a chunk it is looked for

Span: TypeAlias = tuple[int, int]  # samples, end exclusive
FindSpeech: TypeAlias = Callable[[Samples], list[Span]]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 27 s of speech without long pauses. ``spans`` are where its parts were, in samples
    of the whole recording; ``samples`` are those parts, joined."""

    samples: Samples
    spans: tuple[Span, ...]

    @property
    def duration_s(self) -> float:
        return len(self.samples) / WHISPER_RATE_HZ

    def after(self, time_s: float) -> Chunk | None:
        """What follows the moment ``time_s`` of ``samples``; None if that is nothing."""
        n_left_out = max(0, round(time_s * WHISPER_RATE_HZ))
        samples = self.samples[n_left_out:]
        spans = []
        for start, end in self.spans:
            n_skipped = min(n_left_out, end - start)
            n_left_out -= n_skipped
            if start + n_skipped < end:
                spans.append((start + n_skipped, end))
        return Chunk(samples=samples, spans=tuple(spans)) if spans else None

    def original_s(self, time_s: float, *, is_end: bool = False) -> float:
        """Where a moment of ``samples`` is in the recording. At a joint, an end belongs to the
        part before it and a start to the one after."""
        ends = list(accumulate(end - start for start, end in self.spans))
        position = min(max(0, round(time_s * WHISPER_RATE_HZ)), ends[-1])
        find = bisect.bisect_left if is_end else bisect.bisect_right
        i = min(find(ends, position), len(ends) - 1)
        before = ends[i - 1] if i else 0
        return (self.spans[i][0] + position - before) / WHISPER_RATE_HZ


def speech_chunks(
    blocks: Iterable[Samples], find_speech: FindSpeech, *, early: bool = False
) -> Iterator[Chunk]:
    """The chunks of speech in order; none if there is no speech.

    :param find_speech: the spans of speech in some samples, each at most ``CHUNK_S``.
    """
    buffer: list[Samples] = []
    n_buffer = 0
    offset = 0  # of the buffer in the recording
    n_window = int((EARLY_WINDOW_S if early else WINDOW_S) * WHISPER_RATE_HZ)
    for block in blocks:
        buffer.append(block)
        n_buffer += len(block)
        if n_buffer < n_window:
            continue
        audio = np.concatenate(buffer)
        groups = _groups(find_speech(audio))
        complete, kept_from = _settled(groups, len(audio))
        for group in complete:
            yield _chunk(audio, group, offset)
        if complete or (groups and kept_from == 0):  # the latter: a first window that is one chunk
            n_window = int(WINDOW_S * WHISPER_RATE_HZ)
        offset += kept_from
        buffer = [audio[kept_from:].copy()]
        n_buffer = len(buffer[0])
    if n_buffer:
        audio = np.concatenate(buffer)
        for group in _groups(find_speech(audio)):
            yield _chunk(audio, group, offset)


def _settled(groups: list[list[Span]], n_audio: int) -> tuple[list[list[Span]], int]:
    """The groups that nothing can change any more, and from where on the audio is looked at again.

    Speech at the end may go on with what comes. It must not keep a whole window, or that would
    be searched again with each second that follows.
    """
    last = groups[-1] if groups else []
    if not last or n_audio - last[-1][1] > _ENDED_S * WHISPER_RATE_HZ:
        # Silence is dropped, except a moment that may begin a word.
        return groups, max(0, n_audio - WHISPER_RATE_HZ)
    if last[0][0] < n_audio // 2 and len(last) > 1:
        return [*groups[:-1], last[:-1]], last[-1][0]
    return groups[:-1], last[0][0]


def whole_chunks(audio: Samples) -> list[Span]:
    """Everything, as if it were speech: cut at the quietest moment of each last seconds."""
    spans = []
    start = 0
    while len(audio) - start > N_CHUNK:
        end = start + N_CHUNK
        end = quietest_cut(audio, end - int(_SEARCH_S * WHISPER_RATE_HZ), end)
        spans.append((start, end))
        start = end
    if len(audio) > start:
        spans.append((start, len(audio)))
    return spans


def quietest_cut(audio: Samples, start: int, end: int) -> int:
    """The middle of the quietest moment between two samples."""
    n = int(_QUIET_S * WHISPER_RATE_HZ)
    moments = audio[start : start + (end - start) // n * n].reshape(-1, n)
    quietest = int(np.argmin(np.square(moments).sum(axis=1)))
    return start + quietest * n + n // 2


def _groups(spans: list[Span]) -> list[list[Span]]:
    """Neighbouring spans, as many together as fit a chunk, parted at the longest pauses."""
    groups: list[list[Span]] = []
    group: list[Span] = []
    for span in spans:
        group.append(span)
        while len(group) > 1 and _n_samples(_joined(group)) > N_CHUNK:
            n_first = _best_cut(group)
            groups.append(_joined(group[:n_first]))
            group = group[n_first:]
    if group:
        groups.append(_joined(group))
    return groups


def _joined(spans: list[Span]) -> list[Span]:
    """With short pauses kept: Whisper sets its commas and full stops by them. Long ones go:
    in those it hears what nobody said."""
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start - joined[-1][1] <= _KEPT_PAUSE_S * WHISPER_RATE_HZ:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _best_cut(spans: list[Span]) -> int:
    """How many of the spans go into a chunk; the last one is too much for it.

    Where speech pauses longest a sentence ends, most likely; but a chunk that is less than
    half full wastes the time of the other half.
    """
    pauses = [(spans[i][0] - spans[i - 1][1], i) for i in range(1, len(spans))]
    full = [(pause, i) for pause, i in pauses if _n_samples(_joined(spans[:i])) * 2 >= N_CHUNK]
    return max(full or pauses[-1:])[1]


def _n_samples(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


def _chunk(audio: Samples, spans: list[Span], offset: int) -> Chunk:
    return Chunk(
        samples=np.concatenate([audio[start:end] for start, end in spans]),
        spans=tuple((start + offset, end + offset) for start, end in spans),
    )
