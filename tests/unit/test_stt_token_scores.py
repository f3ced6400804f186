"""Log-probabilities of a transcript's tokens: each segment gets its own, as bytes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ferrum_local.audio_types import TranscribedSegment
from ferrum_local.stt.speech_chunks import Chunk
from ferrum_local.stt.token_scores import with_logprobs
from ferrum_local.types import TokenLogprob

pytest.importorskip("faster_whisper")

EOT = 1000  # special tokens and times begin here
CHUNK = Chunk(samples=np.zeros(16_000 * 3, np.float32), spans=((0, 16_000 * 3),))
PIECES = {1: "Ġsi", 2: "ÃŃ", 3: "Ã", 4: "Ń"}


class Reader:
    """A model in which token ``n`` has the probability 1 / n, and 0 has none."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []
        self.model = self

    def feature_extractor(self, samples: np.ndarray) -> np.ndarray:
        return np.zeros((80, len(samples) // 160 + 1), np.float32)

    def encode(self, features: np.ndarray) -> np.ndarray:
        return features

    def align(
        self, encoded: np.ndarray, start: list[int], texts: list[list[int]], n_frames: int
    ) -> list[Any]:
        assert encoded.shape == (80, 3000), "Whisper's window"
        assert (start, n_frames) == ([EOT + 1], 300)
        self.reads += texts
        found = [[1 / token if token else 0.0 for token in tokens] for tokens in texts]
        return [SimpleNamespace(text_token_probs=probabilities) for probabilities in found]


def scored(*tokens: tuple[int, ...]) -> tuple[list[tuple[TokenLogprob, ...]], Reader]:
    reader = Reader()
    tokenizer = SimpleNamespace(
        eot=EOT, sot_sequence=[EOT + 1],
        tokenizer=SimpleNamespace(id_to_token=lambda token: PIECES.get(token, "x")),
    )  # fmt: skip
    segments = [
        TranscribedSegment(id=i, start=0.0, end=1.0, text="", tokens=t)
        for i, t in enumerate(tokens)
    ]
    found = with_logprobs(cast(Any, reader), cast(Any, tokenizer), CHUNK, iter(segments))
    return [segment.logprobs for segment in found], reader


def test_each_segment_gets_those_of_its_text() -> None:
    (first, second), reader = scored((EOT + 5, 1, 2, EOT + 9), (EOT + 9, 4, EOT + 20))
    assert reader.reads == [[1, 2, 4]], "one look for all segments, without their times"
    assert [(e.token_id, e.logprob) for e in first] == [(1, 0.0), (2, -math.log(2))]
    assert [e.token_id for e in second] == [4]


def test_a_character_may_be_parted() -> None:
    ((whole, *parts),), _ = scored((2, 3, 4))
    assert whole.bytes.decode() == "í"
    assert b"".join(part.bytes for part in parts).decode() == "í"


def test_what_is_impossible_is_minus_infinity() -> None:
    (((entry,),), _) = scored((0,))
    assert entry.logprob == -math.inf


def test_long_texts_are_read_in_parts_and_nothing_is_read_for_none() -> None:
    found, reader = scored((7,) * 300, (7,) * 300, (EOT + 1,))
    assert [len(entries) for entries in found] == [300, 300, 0]
    assert [len(read) for read in reader.reads] == [300, 300]
    assert scored()[0] == []
