"""Connects, talks and leaves, again and again, and looks for what sessions leave behind.

``python scripts/soak_realtime.py`` starts ``ferrum-local serve`` on a free port. Each round speaks
a sentence and leaves at another moment of the answer; some rounds cut the connection. It ends
with 1 if threads, memory, places or running sequences were lost.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import openai
import psutil
from prometheus_client.parser import text_string_to_metric_families

from soaking.checks import MIB

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"
SERVE = (
    "--model", f"smol={MODELS / 'SmolLM2-135M-Instruct.Q4_1.gguf'}",
    "--whisper-model", f"tiny={MODELS / 'whisper-tiny.en'}",
    "--voice", f"joe={MODELS / 'voices' / 'en_US-joe-medium.onnx'}",
    "--ctx-size", "1024", "--slots", "4", "--prompt-cache-mb", "32",
)  # fmt: skip
SENTENCE = "Hello there, how are you?"
MAX_TOKENS = 24
# The event after which a round leaves; None: it cuts the connection after the first one.
LEAVE_AFTER = (
    "response.output_audio.delta", "response.created", "input_audio_buffer.speech_started",
    "response.done", None,
)  # fmt: skip
BUSY_SERIES = (
    "ferrum_running_sequences", "ferrum_queue_depth", "ferrum_http_requests_in_flight",
)  # fmt: skip
WARM_UP_ROUNDS = 30
MAX_MORE_THREADS = 12  # the pool of HTTP threads grows on the way
MAX_MORE_BYTES = 64 * MIB
IDLE_S = 120.0


class State(NamedTuple):
    """Of the server when nothing runs."""

    rss_bytes: int
    n_threads: int


class Server:
    """A server process and what it says of itself. Leaving the block stops it."""

    def __enter__(self) -> Server:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ferrum_local", "serve", "--port", "0", "--announce", "json",
             *SERVE],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"the server did not start:\n{self._log.read()}")
        self.url = json.loads(line)["url"]
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def wait_idle(self) -> State:
        """:raises SystemExit: something goes on running."""
        deadline = time.monotonic() + IDLE_S
        while busy := self._busy():
            if time.monotonic() > deadline:
                raise SystemExit(f"still busy after {IDLE_S:g} s without a session: {busy}")
            time.sleep(0.2)
        root = psutil.Process(self._process.pid)
        family = (root, *root.children(recursive=True))
        return State(
            rss_bytes=sum(p.memory_info().rss for p in family),
            n_threads=sum(p.num_threads() for p in family),
        )

    def _busy(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=IDLE_S) as response:
            text = response.read().decode()
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in BUSY_SERIES
        }
        return {name: value for name, value in found.items() if value}


def one_round(client: openai.OpenAI, pcm: bytes, leave_after: str | None) -> None:
    """:raises RuntimeError: an error event came."""
    with client.realtime.connect(model="gpt-realtime") as session:
        session.session.update(session={"type": "realtime", "max_output_tokens": MAX_TOKENS})
        session.input_audio_buffer.append(audio=base64.b64encode(pcm + bytes(48_000)).decode())
        for event in session:
            if event.type == "error":
                raise RuntimeError(event.error.message)
            if leave_after is None:
                session._connection.socket.close()  # no goodbye
                return
            if event.type == leave_after:
                return


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=1000, help="default 1000")
    n_rounds = parser.parse_args(arguments).rounds
    # It prints a traceback when its socket is cut, which is what some rounds do.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    with Server() as server:
        pcm = server.client.audio.speech.create(
            model="tts-1", voice="joe", input=SENTENCE, response_format="pcm"
        ).read()
        before: State | None = None
        slowest_s = 0.0
        for i in range(WARM_UP_ROUNDS + n_rounds):
            if i == WARM_UP_ROUNDS:
                before = server.wait_idle()
            started_s = time.monotonic()
            one_round(server.client, pcm, LEAVE_AFTER[i % len(LEAVE_AFTER)])
            slowest_s = max(slowest_s, time.monotonic() - started_s)
            if i % 100 == 99:
                state = server.wait_idle()
                print(
                    f"round {i + 1 - WARM_UP_ROUNDS:5}: {state.rss_bytes / MIB:.0f} MiB, "
                    f"{state.n_threads} threads, slowest round {slowest_s:.1f} s",
                    flush=True,
                )
        after = server.wait_idle()
        assert before is not None
        problems = [
            text
            for text, is_bad in (
                (f"{after.n_threads - before.n_threads} threads more",
                 after.n_threads > before.n_threads + MAX_MORE_THREADS),
                (f"{(after.rss_bytes - before.rss_bytes) / MIB:.0f} MiB more",
                 after.rss_bytes > before.rss_bytes + MAX_MORE_BYTES),
                ("a traceback in the server's log", "Traceback" in server.log),
            )
            if is_bad
        ]  # fmt: skip
        print(f"{n_rounds} rounds: {before} before, {after} after")
        print("\n".join(problems) or "nothing was lost")
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
