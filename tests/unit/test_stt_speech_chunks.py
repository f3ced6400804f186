"""Recordings of any length are cut into chunks of speech, and times are found back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum_local.stt.speech_chunks import (
    CHUNK_S,
    Chunk,
    Samples,
    Span,
    speech_chunks,
    whole_chunks,
)

RATE_HZ = 16_000
# seconds of (speech, pause), again and again
rhythms = st.lists(
    st.tuples(st.floats(0.1, CHUNK_S - 1), st.floats(0.2, 40.0)), min_size=1, max_size=25
)


def recording(rhythm: list[tuple[float, float]]) -> tuple[Samples, list[Span]]:
    """Ones where there is speech, zeros where there is none."""
    parts: list[Samples] = []
    spans = []
    at = 0
    for speech_s, pause_s in rhythm:
        n_speech, n_pause = round(speech_s * RATE_HZ), round(pause_s * RATE_HZ)
        parts += [np.ones(n_speech, np.float32), np.zeros(n_pause, np.float32)]
        spans.append((at, at + n_speech))
        at += n_speech + n_pause
    return np.concatenate(parts), spans


def find_ones(audio: Samples) -> list[Span]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], audio, [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def blocks(audio: Samples) -> Iterator[Samples]:
    for start in range(0, len(audio), RATE_HZ):
        yield audio[start : start + RATE_HZ]


@settings(max_examples=25, deadline=None)
@given(rhythms, st.booleans())
def test_all_speech_is_in_the_chunks_once_and_in_order(
    rhythm: list[tuple[float, float]], early: bool
) -> None:
    audio, spans = recording(rhythm)
    chunks = list(speech_chunks(blocks(audio), find_ones, early=early))
    assert all(chunk.duration_s <= CHUNK_S for chunk in chunks)
    assert sum(int(chunk.samples.sum()) for chunk in chunks) == sum(b - a for a, b in spans)
    covered = [span for chunk in chunks for span in chunk.spans]
    assert covered == sorted(covered)
    for chunk in chunks:
        joined = np.concatenate([audio[a:b] for a, b in chunk.spans])
        assert np.array_equal(joined, chunk.samples)


@settings(max_examples=25, deadline=None)
@given(rhythms, st.floats(0, 1))
def test_times_are_found_back(rhythm: list[tuple[float, float]], where: float) -> None:
    audio, _ = recording(rhythm)
    for chunk in speech_chunks(blocks(audio), find_ones):
        start_s = chunk.original_s(where * chunk.duration_s)
        end_s = chunk.original_s(where * chunk.duration_s, is_end=True)
        assert chunk.spans[0][0] / RATE_HZ <= end_s <= start_s <= chunk.spans[-1][1] / RATE_HZ
        assert round(chunk.original_s(0.0) * RATE_HZ) == chunk.spans[0][0]
        last_s = chunk.original_s(chunk.duration_s, is_end=True)
        assert round(last_s * RATE_HZ) == chunk.spans[-1][1]


def test_what_follows_a_moment_keeps_its_place() -> None:
    chunk = Chunk(samples=np.arange(30, dtype=np.float32), spans=((100, 110), (200, 220)))
    rest = chunk.after(15 / RATE_HZ)
    assert rest is not None
    assert rest.spans == ((205, 220),)
    assert rest.samples.tolist() == list(range(15, 30))
    assert chunk.after(30 / RATE_HZ) is None


def test_short_pauses_stay_and_long_ones_go() -> None:
    audio, _ = recording([(2.0, 1.0), (2.0, 5.0), (2.0, 1.0)])
    (chunk,) = speech_chunks(blocks(audio), find_ones)
    assert chunk.duration_s == 2 + 1 + 2 + 2


def test_chunks_part_at_the_longest_pause() -> None:
    audio, spans = recording([(8.0, 0.3), (9.0, 1.5), (8.0, 0.3), (8.0, 0.3)])
    first, second = speech_chunks(blocks(audio), find_ones)
    assert first.spans == ((spans[0][0], spans[1][1]),)
    assert second.spans == ((spans[2][0], spans[3][1]),)


def test_no_speech_no_chunks() -> None:
    assert list(speech_chunks(blocks(np.zeros(RATE_HZ * 700, np.float32)), find_ones)) == []


def test_without_speech_detection_cuts_are_in_quiet_moments() -> None:
    audio = np.ones(RATE_HZ * 70, np.float32)
    audio[RATE_HZ * 26 : RATE_HZ * 26 + 640] = 0  # 40 ms of quiet
    spans = whole_chunks(audio)
    assert spans[0][1] / RATE_HZ == pytest.approx(26.02, abs=0.03)
    assert [spans[0][0], spans[-1][1]] == [0, len(audio)]
    assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert all(end - start <= CHUNK_S * RATE_HZ for start, end in spans)


def test_memory_does_not_grow_with_the_recording() -> None:
    """Chunks of the first minutes come while the rest of an hour is not yet read."""
    n_read = 0

    def endless() -> Iterator[Samples]:
        nonlocal n_read
        block = np.concatenate([np.ones(12_000, np.float32), np.zeros(4_000, np.float32)])
        while n_read < 3600:
            n_read += 1
            yield block

    chunks = speech_chunks(endless(), find_ones)
    next(chunks)
    assert n_read <= 301


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("rhythm", [[(20.0, 1800.0), (5.0, 300.0)], [(2.0, 25.0)] * 60])
def test_long_silence_is_searched_once(rhythm: list[tuple[float, float]], early: bool) -> None:
    audio, spans = recording(rhythm)
    searched = 0

    def find(window: Samples) -> list[Span]:
        nonlocal searched
        searched += len(window)
        return find_ones(window)

    chunks = list(speech_chunks(blocks(audio), find, early=early))
    assert searched < 2 * len(audio)
    assert sum(int(chunk.samples.sum()) for chunk in chunks) == sum(b - a for a, b in spans)
