"""Whether a chunk is decoded again, by how Whisper ended it."""

from __future__ import annotations

import pytest

pytest.importorskip("faster_whisper")

from ferrum_local.stt.batching import _goes_on_s

FIRST_TIME = 1000  # the token of 0 s; 50 follow for each second
TEXT = 7


def at(seconds: float) -> int:
    return FIRST_TIME + round(seconds * 50)


@pytest.mark.parametrize(
    ("tokens", "goes_on_s"),
    [
        ([at(0), TEXT, at(20), at(20)], 20.0),  # cut: the next window would begin there
        ([at(0), TEXT, at(24.5), at(24.5)], None),  # but only a breath is left
        ([at(0), TEXT, at(22)], None),  # nothing follows: asking again would invent words
        ([at(0), TEXT, at(15)], 15.0),  # ten seconds of speech that nothing is said of
        ([at(0), TEXT], None),  # an open end is the end of the chunk
        ([at(0), at(0)], None),  # no way forward
        ([at(3)], None),
        ([], None),
    ],
)
def test_a_chunk_of_25_seconds(tokens: list[int], goes_on_s: float | None) -> None:
    assert _goes_on_s(tokens, FIRST_TIME, 25.0) == goes_on_s
