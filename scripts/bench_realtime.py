"""Measures spoken conversations: how soon an answer is heard, and how soon it falls silent.

Speech made by the server's own voice is sent in real time, as a microphone would; prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.report import Target, number
from bench.servers import serving
from bench.stats import median
from ferrum_local.cli.realtime_client import RealtimeClient
from ferrum_local.errors import FerrumError

ROOT = Path(__file__).resolve().parent.parent
RATE_HZ = 24_000
BLOCK_S = 0.02  # sent at once, as browsers and telephones do
VOICED = 0.02  # of full scale; what is quieter at the ends of a sentence is no speech
TIMEOUT_S = 60.0
SILENCE_MS = 500
ANSWER_TARGET_MS = 900.0  # beyond the pause that ends a turn
BARGE_IN_TARGET_MS = 200.0
SHORT = "Answer in one short sentence."
LONG = "Tell a long story. Never stop."
TRIES = 3  # for each answer to interrupt; a small model may end one at once
QUESTIONS = (
    "Where can I buy a good pair of walking shoes?",
    "What shall we have for dinner on Sunday evening?",
    "How do I get from the station to the harbor?",
    "Which birds can be seen in the garden in winter?",
)
INTERRUPTION = "Stop, please, I want to ask something else."
Pcm = npt.NDArray[np.int16]


class Turn(NamedTuple):
    """``answer_s``: from the last voiced sample to the first audio of the answer."""

    heard: str
    answer_s: float


class Row(NamedTuple):
    measure: str
    values: Sequence[float]
    unit: str
    target: Target | None = None

    def cells(self) -> tuple[str, ...]:
        middle = median(self.values)
        verdict = "" if self.target is None else self.verdict(middle)
        return (
            self.measure,
            f"{number(middle)} {self.unit}".rstrip(),
            f"{number(max(self.values))} {self.unit}".rstrip(),
            str(self.target or ""),
            verdict,
        )

    def verdict(self, middle: float) -> str:
        assert self.target is not None
        return "pass" if self.target.holds(middle) else "**miss**"


class Microphone:
    """Sends ``speech`` and then silence in real time, from a thread, until the block is left."""

    def __init__(self, client: RealtimeClient, speech: Pcm) -> None:
        self._client = client
        self._speech = speech
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.began_s = self.ended_s = 0.0  # when the first and the last voiced sample was sent

    def __enter__(self) -> Microphone:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _send(self) -> None:
        n_block = round(BLOCK_S * RATE_HZ)
        silence = np.zeros(n_block, np.int16)
        next_s = self.began_s = time.monotonic()
        at = 0
        while not self._stopped.is_set():
            block = self._speech[at : at + n_block] if at < len(self._speech) else silence
            self._client.append(block.tobytes())
            at += n_block
            if self.ended_s == 0.0 and at >= len(self._speech):
                self.ended_s = time.monotonic()
            next_s += BLOCK_S
            self._stopped.wait(max(0.0, next_s - time.monotonic()))


class Session:
    """A conversation with server VAD."""

    def __init__(self, client: RealtimeClient, *, instructions: str, max_tokens: int) -> None:
        self._client = client
        client.send(
            "session.update",
            session={
                "type": "realtime",
                "instructions": instructions,
                "max_output_tokens": max_tokens,
                "audio": {
                    "input": {
                        "transcription": {"model": "whisper-1"},
                        "turn_detection": {
                            "type": "server_vad",
                            "silence_duration_ms": SILENCE_MS,
                        },
                    }
                },
            },
        )
        self.wait("session.updated")

    def wait(self, *types: str) -> dict[str, Any]:
        """The next event of one of these types."""
        while True:
            event = self._client.receive(TIMEOUT_S)
            if event["type"] == "error":
                raise FerrumError(event["error"]["message"])
            if event["type"] in types:
                return event

    def ask(self, speech: Pcm) -> Turn:
        """Say ``speech`` and hear the answer to its end."""
        heard = ""
        first_s: float | None = None
        with Microphone(self._client, speech) as microphone:
            done = False
            while not (done and heard):
                event = self.wait(
                    "conversation.item.input_audio_transcription.completed",
                    "response.output_audio.delta",
                    "response.done",
                )
                if event["type"] == "response.done":
                    done = True
                elif "transcript" in event:
                    heard = event["transcript"]
                elif first_s is None:
                    first_s = time.monotonic()
        if first_s is None:
            raise FerrumError("an answer had no sound")
        return Turn(heard, first_s - microphone.ended_s)

    def interrupt(self, question: Pcm, interruption: Pcm) -> tuple[float, float] | None:
        """Speak into the answer to ``question``.

        :returns: seconds from the first voiced sample until the client knows that it is to be
            silent and no more audio comes, and from there until the answer is over. None: the
            answer was so short that it had ended by itself.
        """
        with Microphone(self._client, question):
            self.wait("response.output_audio.delta")
        with Microphone(self._client, interruption) as microphone:
            silent_s = time.monotonic()
            told_s: float | None = None
            while True:
                event = self.wait(
                    "input_audio_buffer.speech_started",
                    "response.output_audio.delta",
                    "response.done",
                )
                now_s = time.monotonic()
                if event["type"] == "response.done":
                    break
                if event["type"] == "input_audio_buffer.speech_started":
                    told_s = now_s
                silent_s = now_s
            if told_s is None or event["response"]["status"] != "cancelled":
                return None
        return silent_s - microphone.began_s, now_s - told_s


def voiced(pcm: Pcm) -> Pcm:
    """Without the silence at both ends."""
    loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > VOICED * 32767)
    return pcm[loud[0] : loud[-1] + 1] if len(loud) else pcm[:0]


class Server:
    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url
        self._api_key = api_key

    def speech(self, text: str) -> Pcm:
        body = json.dumps({"input": text, "response_format": "pcm"}).encode()
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = urllib.request.Request(f"{self.url}/v1/audio/speech", body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return voiced(np.frombuffer(response.read(), "<i2"))

    @contextmanager
    def session(self, instructions: str, max_tokens: int) -> Iterator[Session]:
        with RealtimeClient(self.url, api_key=self._api_key) as client:
            yield Session(client, instructions=instructions, max_tokens=max_tokens)


def ms(seconds: float) -> float:
    return seconds * 1000


def answers(server: Server, question: Pcm, repeats: int) -> Row:
    turns = []
    for i in range(repeats + 1):
        with server.session(SHORT, 40) as session:
            turn = session.ask(question)
        if i:  # the first one warms caches up
            turns.append(ms(turn.answer_s))
    target = Target("≤", SILENCE_MS + ANSWER_TARGET_MS, "ms")
    return Row(f"end of speech → first answer audio (pause {SILENCE_MS} ms)", turns, "ms", target)


def barge_ins(server: Server, question: Pcm, interruption: Pcm, repeats: int) -> list[Row]:
    silences: list[float] = []
    endings: list[float] = []
    tries = 0
    while len(silences) < repeats:
        if tries == repeats * TRIES:
            raise FerrumError("too many answers ended before they were interrupted")
        tries += 1
        with server.session(LONG, 400) as session:
            times = session.interrupt(question, interruption)
        if times is not None:
            silences.append(ms(times[0]))
            endings.append(ms(times[1]))
    target = Target("≤", BARGE_IN_TARGET_MS, "ms")
    return [
        Row("barge-in: first voiced sample → silence", silences, "ms", target),
        Row("barge-in: told of it → answer over", endings, "ms", target),
    ]


def at_once(server: Server, questions: Sequence[Pcm], rounds: int) -> list[Row]:
    """All sessions ask at the same moment; each must hear the answer to its own question."""

    def one(place: int) -> Turn:
        with server.session(SHORT, 40) as session:
            start.wait()
            return session.ask(questions[place])

    times, own = [], []
    for _ in range(rounds):
        start = threading.Barrier(len(questions))
        with ThreadPoolExecutor(len(questions)) as pool:
            turns = list(pool.map(one, range(len(questions))))
        times += [ms(turn.answer_s) for turn in turns]
        own.append(float(sum(
            is_own(turn.heard, place) for place, turn in enumerate(turns)
        )))  # fmt: skip
    n = len(questions)
    return [
        Row(f"{n} sessions at once: end of speech → first audio", times, "ms"),
        Row(f"{n} sessions at once: heard as asked", own, f"of {n}", Target("≥", n)),
    ]


def is_own(heard: str, place: int) -> bool:
    """Whether it is this place's question rather than another's; a word may be misheard."""
    words = set(heard.lower().strip(" .?!").split())
    shared = [len(words & set(q.lower().strip(" ?").split())) for q in QUESTIONS]
    return shared.index(max(shared)) == place


def table(rows: Sequence[Row]) -> str:
    lines = ["| measure | median | worst | target | |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def measure(server: Server, repeats: int) -> list[Row]:
    questions = [server.speech(text) for text in QUESTIONS]
    interruption = server.speech(INTERRUPTION)
    return [
        answers(server, questions[0], repeats),
        *barge_ins(server, questions[0], interruption, repeats),
        *at_once(server, questions, max(1, repeats // 4)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="a running server; without, one with the starter models")
    parser.add_argument("--api-key", help="its key")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args(arguments)
    try:
        if options.url:
            rows = measure(Server(options.url, options.api_key), options.repeats)
        else:
            with serving() as url:
                rows = measure(Server(url, None), options.repeats)
    except (FerrumError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{os.cpu_count()} cores, medians of {options.repeats}\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
