"""Runs a real server under a mixed load for minutes and looks for wrong answers and leaks.

``python scripts/soak.py`` starts ``ferrum-local serve`` on a free port with few slots and a short
queue, and lets a dozen clients chat, leave, cancel, ask too much and send rubbish. It prints a
short report and ends with 1 if anything was not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from soaking.bad_input import BAD_REQUESTS, CHAT, GARBAGE
from soaking.checks import (
    MIB,
    Malformed,
    certain_beginning,
    judge_rss,
    read_json,
    read_metrics,
    token_text,
)
from soaking.http_client import Broken, call
from soaking.load import Client, Findings

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
N_CLIENTS = 12
SERVER_OPTIONS = (
    "--ctx-size", "1024", "--slots", "4", "--max-queue", "6", "--prompt-cache-mb", "32",
    "--keep-alive-interval", "1", "--drain-timeout", "5", "--debug", "--log-level", "info",
)  # fmt: skip
_START_S = 120.0
_STOP_S = 30.0
_IDLE_S = 120.0
_HEALTH_EVERY_S, _HEALTH_WITHIN_S = 0.5, 10.0
_METRICS_EVERY_S = 2.0
_KNOWN_EVERY_S = 60.0
_MAX_SHOWN = 20
KNOWN_QUESTIONS = (
    "What is the capital of France?",
    "Count from one to ten in words.",
    "Say the days of the week.",
    "Repeat this sentence: The quick brown fox jumps over the lazy dog.",
    "Write the first five letters of the alphabet.",
)


class Soak:
    """One run against a server that is ready."""

    def __init__(self, port: int, *, minutes: float, seed: int) -> None:
        self._port = port
        self._run_s = 60 * minutes
        self._seed = seed
        self.findings = Findings()
        self.known: dict[str, str] = {}
        self.n_known_asked = 0
        self.rss: list[tuple[float, float]] = []  # seconds since the start, bytes
        self.health_s: list[float] = []
        self.totals: dict[str, float] = {}
        self._started = time.monotonic()

    async def run(self) -> None:
        await self._ask_known()
        ends, may_run = asyncio.Event(), asyncio.Event()
        may_run.set()
        clients = [
            Client(i, self._port, self._seed, self.findings, may_run) for i in range(N_CLIENTS)
        ]
        self._started = time.monotonic()
        tasks = [asyncio.ensure_future(client.run(ends)) for client in clients]
        watches = [asyncio.ensure_future(w) for w in (self._watch_health(), self._watch_metrics())]
        try:
            await self._load(clients, may_run)
            ends.set()
            may_run.set()
            await asyncio.gather(*tasks)
            await self._come_to_rest()
            for bad in BAD_REQUESTS:
                await clients[0].send_bad(bad)
            for garbage in GARBAGE:
                await clients[0].send_garbage(garbage)
            await self._come_to_rest()
            await self._ask_known()
            await self._check_books()
        finally:
            for task in (*tasks, *watches):
                task.cancel()
            await asyncio.gather(*tasks, *watches, return_exceptions=True)

    async def _load(self, clients: list[Client], may_run: asyncio.Event) -> None:
        """Let the clients run; from time to time stop them and ask what is known, alone."""
        ends_at = self._started + self._run_s
        while (left_s := ends_at - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, _KNOWN_EVERY_S, max(5.0, self._run_s / 4)))
            may_run.clear()
            while any(client.is_busy for client in clients):
                await asyncio.sleep(0.1)
            await self._come_to_rest()
            await self._ask_known()
            may_run.set()

    # -- watching --------------------------------------------------------------------------

    async def _watch_health(self) -> None:
        while True:
            asked = time.monotonic()
            try:
                reply = await asyncio.wait_for(call(self._port, "GET", "/health"), _HEALTH_WITHIN_S)
                status = read_json(reply.body)["status"]
                if reply.status != 200 or status != "healthy":
                    self.findings.violation(f"/health says {reply.status} {status}")
            except (Broken, Malformed, asyncio.TimeoutError) as exc:
                self.findings.violation(f"/health: {type(exc).__name__} {exc}")
            self.health_s.append(time.monotonic() - asked)
            await asyncio.sleep(_HEALTH_EVERY_S)

    async def _watch_metrics(self) -> None:
        while True:
            try:
                await self._metrics()
            except (Broken, Malformed, KeyError) as exc:
                self.findings.violation(f"/metrics: {type(exc).__name__} {exc}")
            await asyncio.sleep(_METRICS_EVERY_S)

    async def _metrics(self) -> dict[str, float]:
        reply = await call(self._port, "GET", "/metrics")
        values = read_metrics(reply.body.decode())
        if values["ferrum_steps_total"] < self.totals.get("ferrum_steps_total", 0.0):
            self.findings.violation("the counters began anew: the server crashed and was restarted")
        self.totals = values
        self.rss.append((time.monotonic() - self._started, values["ferrum_resident_memory_bytes"]))
        return values

    async def _come_to_rest(self) -> None:
        """Wait until nothing runs or waits any more, as it must soon once all clients are done."""
        deadline = time.monotonic() + _IDLE_S
        while True:
            values = await self._metrics()
            left = {
                name: values[name]
                for name in ("ferrum_running_sequences", "ferrum_queue_depth")
                if values[name]
            }
            if not left:
                return
            if time.monotonic() > deadline:
                self.findings.violation(f"{left} left with no client, after {_IDLE_S:g} s")
                return
            await asyncio.sleep(0.2)

    async def _check_books(self) -> None:
        reply = await call(self._port, "GET", "/debug/check")
        if reply.status != 200:
            self.findings.violation(f"/debug/check: {reply.status} {reply.body[:300]!r}")

    # -- known answers -----------------------------------------------------------------------

    async def _ask_known(self) -> None:
        """Ask alone what was asked at the start, and compare."""
        for question in KNOWN_QUESTIONS:
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 40, "temperature": 0, "logprobs": True, "top_logprobs": 2,
            }  # fmt: skip
            reply = await call(self._port, "POST", CHAT, body)
            answer = read_json(reply.body)
            if reply.status != 200:
                self.findings.violation(f"a known question got {reply.status}")
                continue
            self.n_known_asked += 1
            expected = self.known.setdefault(question, certain_beginning(answer))
            text = token_text(answer["choices"][0]["logprobs"]["content"])
            if not text.startswith(expected):
                self.findings.violation(f"WRONG ANSWER to {question!r}: {text!r}, not {expected!r}")


# -- the server --------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(log: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server that is ready, and its port; killed at the end if it still runs.

    :raises SystemExit: when it does not get ready.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "ferrum_local", "serve", "--model", str(MODEL), "--port", "0",
         "--announce", "json", *SERVER_OPTIONS],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if not name.startswith("FERRUM_")},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()  # ends with the process, ready or not
        if not line:
            raise SystemExit(f"the server did not start; its log is {log.name}")
        yield process, int(json.loads(line)["port"])
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.kill()
        process.wait()


def stop(process: subprocess.Popen[bytes], findings: Findings) -> None:
    """End the server as a service manager does."""
    if process.poll() is not None:
        findings.violation(f"the server ended by itself with {process.returncode}")
        return
    process.send_signal(signal.SIGTERM)
    try:
        if code := process.wait(_STOP_S):
            findings.violation(f"SIGTERM: the server ended with {code} instead of 0")
    except subprocess.TimeoutExpired:
        findings.violation(f"SIGTERM: the server still runs after {_STOP_S:g} s")


def report(soak: Soak, run_s: float) -> None:
    findings, totals = soak.findings, soak.totals
    statuses = ", ".join(f"{status}: {n}" for status, n in sorted(findings.statuses.items()))
    print(f"did      {', '.join(f'{n} {name}' for name, n in findings.done.most_common())}")
    print(f"statuses {statuses}")
    names = ("generated_tokens", "prompt_tokens", "prefix_tokens_saved", "cancelled", "preempted")
    engine = ", ".join(f"{name} {totals.get(f'ferrum_{name}_total', 0):.0f}" for name in names)
    print(f"engine   {engine}")
    n_tokens = sum(len(text.split()) for text in soak.known.values())
    print(f"known    {soak.n_known_asked} answers compared, {n_tokens} words of each round certain")
    if soak.health_s:
        slowest = max(soak.health_s)
        print(f"/health  {len(soak.health_s)} times, the slowest in {slowest * 1e3:.0f} ms")
    rss = judge_rss(soak.rss, run_s)
    print(
        f"memory   {rss.baseline / MIB:.0f} MiB early, {rss.end / MIB:.0f} MiB at the end, "
        f"{rss.allowed / MIB:.0f} MiB allowed"
    )
    if rss.has_grown:
        findings.violation("memory grew beyond what is allowed")
    counted = collections.Counter(findings.violations)
    for violation, n in counted.most_common(_MAX_SHOWN):
        print(f"VIOLATION ({n}x) {violation}")
    print(f"{len(findings.violations)} violations")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0, help="1 to 240; default 10")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    minutes = min(max(options.minutes, 1.0), 240.0)
    print(f"soak     {minutes:g} minutes, seed {options.seed}, {N_CLIENTS} clients", flush=True)
    with tempfile.NamedTemporaryFile(prefix="soak-", suffix=".log", delete=False) as log:
        with serving(log) as (process, port):
            soak = Soak(port, minutes=minutes, seed=options.seed)
            try:
                asyncio.run(soak.run())
            except (Broken, Malformed) as exc:
                soak.findings.violation(f"the run ended early: {exc}")
            stop(process, soak.findings)
        text = Path(log.name).read_text("utf-8", errors="replace")
        for sign in ("Traceback", "ERROR"):
            if sign in text:
                soak.findings.violation(f"{sign} in the server's log, {log.name}")
    report(soak, 60 * minutes)
    if soak.findings.violations:
        print(f"the server's log: {log.name}")
        return 1
    Path(log.name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
