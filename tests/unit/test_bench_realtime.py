"""The benchmark of spoken conversations: its parts; what it finds is for a quiet machine to say."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import bench_realtime
from bench.report import Target


def test_speech_begins_and_ends_with_a_voice() -> None:
    speech = np.concatenate([np.zeros(99), [3000, 0, -4000], np.full(50, 9)]).astype(np.int16)
    assert bench_realtime.voiced(speech).tolist() == [3000, 0, -4000]
    assert len(bench_realtime.voiced(np.zeros(9, np.int16))) == 0


def test_the_microphone_tells_when_the_last_voiced_sample_went() -> None:
    sent: list[bytes] = []
    silence = threading.Event()

    class Client:
        def append(self, pcm: bytes) -> None:
            sent.append(pcm)
            if not any(pcm):
                silence.set()

    speech = np.ones(1000, np.int16)
    with bench_realtime.Microphone(Client(), speech) as microphone:  # type: ignore[arg-type]
        assert silence.wait(30)
    said = b"".join(sent)
    assert said.startswith(speech.tobytes()) and not any(said[2000:])
    assert microphone.began_s < microphone.ended_s


@pytest.mark.parametrize("place", range(len(bench_realtime.QUESTIONS)))
def test_a_question_is_known_with_a_word_misheard(place: int) -> None:
    first, *words = bench_realtime.QUESTIONS[place].split()
    assert bench_realtime.is_own(f"{first.upper()} oops {' '.join(words[1:])}", place)
    assert not bench_realtime.is_own(bench_realtime.QUESTIONS[place - 1], place)


def test_the_table_has_medians_and_verdicts() -> None:
    rows = [
        bench_realtime.Row("soon", [1.0, 2.0, 9.0], "ms", Target("≤", 3, "ms")),
        bench_realtime.Row("late", [5.0], "ms", Target("≤", 3, "ms")),
        bench_realtime.Row("other", [5.0], "ms"),
    ]
    assert bench_realtime.table(rows).splitlines()[2:] == [
        "| soon | 2.00 ms | 9.00 ms | ≤ 3 ms | pass |",
        "| late | 5.00 ms | 5.00 ms | ≤ 3 ms | **miss** |",
        "| other | 5.00 ms | 5.00 ms |  |  |",
    ]


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_realtime.main(["--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
