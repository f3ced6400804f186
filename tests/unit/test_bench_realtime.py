"""The benchmark of spoken conversations: its parts; what it finds is for a quiet machine to say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import bench_realtime
from bench.report import Target
from ferrum_local.errors import FerrumError


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


class Interrupted:
    """A server whose sessions answer an interruption with these times, one after the other."""

    def __init__(self, *times: tuple[float, float] | None) -> None:
        self.left = list(times)

    @contextmanager
    def session(self, instructions: str, max_tokens: int) -> Iterator[Interrupted]:
        yield self

    def interrupt(self, *speech: object) -> tuple[float, float] | None:
        return self.left.pop(0)


def test_an_answer_that_ended_by_itself_is_no_measurement() -> None:
    speech = np.ones(1, np.int16)
    server = Interrupted(None, (0.1, 0.2), None, None, None, (0.3, 0.4))
    silences, endings = bench_realtime.barge_ins(server, speech, speech, 2)  # type: ignore[arg-type]
    assert (silences.values, endings.values) == ([100, 300], [200, 400])
    with pytest.raises(FerrumError, match="too many answers"):
        bench_realtime.barge_ins(Interrupted(*[None] * 6), speech, speech, 2)  # type: ignore[arg-type]


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
