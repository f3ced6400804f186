"""Measure ``/v1/embeddings`` beside a bare llama.cpp loop and, if given, another server.

Prints a Markdown table of texts a second, ratios and targets. ``batch``: one request with 256 short
texts; ``clients``: 64 connections at once with one text each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.http_client import BenchError, parse_reply, send
from bench.report import Row, Target, table
from bench.servers import OURS, Server, ServerOptions, start_peer
from bench.stats import median

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "all-minilm-l6-v2.f16.gguf"
BARE = ROOT / "scripts" / "bench" / "bare_embeddings.py"
OURS_CMD = (
    "{python} -m ferrum_local serve --config {null} --embedding-model {{model}} "
    "--threads {{threads}} --port {{port}} --log-level warning"
)
N_BATCH, N_CLIENTS = 256, 64
STEP_TOKENS = (128, 512)  # the bare loop's best of these counts
WORDS = (
    "the cat sat on a mat while rain fell over quiet streets and people walked home slowly past "
    "bright windows where music played until morning came"
).split()


def short_texts(n: int, seed: int) -> list[str]:
    """Sentences of 5 to 16 words."""
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(5, 16))) for _ in range(n)]


class Bare:
    """The bare loop in a process of its own."""

    def __init__(self, model: Path, threads: int, step_tokens: int) -> None:
        command = [sys.executable, str(BARE), str(model), str(threads), str(step_tokens)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, texts: Sequence[str]) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(texts), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the bare loop ended")
        return float(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


async def request_s(server: Server, requests: Sequence[object]) -> float:
    """Seconds until all requests, sent at once, are answered."""
    started = time.perf_counter()

    async def ask(body: object) -> None:
        exchange = await send(server.address, "/v1/embeddings", body)
        await exchange.wait_closed()
        reply = parse_reply(exchange.arrivals)
        if reply.status != 200:
            raise BenchError(f"{server.name} answered {reply.status}: {reply.content[:200]!r}")

    await asyncio.gather(*(ask(body) for body in requests))
    return time.perf_counter() - started


async def measure(options: argparse.Namespace, log: Path) -> list[Row]:
    settings = ServerOptions(model=options.model, ctx_size=512, slots=1, threads=options.threads)
    ours = OURS_CMD.format(python=sys.executable, null=os.devnull)
    commands = [(OURS, ours), *options.peer_cmd]
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as held:
        servers = []
        for name, command in commands:
            servers.append(await start_peer(name, command, settings, log))
            held.callback(servers[-1].stop)
        bare = [Bare(options.model, options.threads, n) for n in STEP_TOKENS]
        for loop in bare:
            held.callback(loop.close)
        for repeat in range(options.repeats + 1):  # the first one warms up
            batch = short_texts(options.batch, repeat)
            singles = [{"input": text} for text in short_texts(options.clients, 1000 + repeat)]
            for server in servers:
                for scenario, requests in (("batch", [{"input": batch}]), ("clients", singles)):
                    n = options.batch if scenario == "batch" else options.clients
                    rate = n / await request_s(server, requests)
                    found.setdefault((server.name, scenario), []).append(rate)
            rate = options.batch / min(loop.seconds(batch) for loop in bare)
            found.setdefault(("bare loop", "batch"), []).append(rate)
    rates = {key: median(values[1:]) for key, values in found.items()}
    rows = [_row("batch", rates, "bare loop", Target("≥", 0.9))]
    for name, _ in options.peer_cmd:
        rows.append(_row("batch", rates, name, Target("≥", 1.2)))
        rows.append(_row("clients", rates, name, Target("≥", 1.0)))
    return rows


def _row(scenario: str, rates: dict[tuple[str, str], float], other: str, target: Target) -> Row:
    ours, theirs = rates[OURS, scenario], rates[other, scenario]
    return Row(scenario, "texts/s", ours, other, theirs, ours / theirs, target)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, default=MODEL, help="GGUF file [%(default)s]")
    add("--threads", type=int, default=2, help="[%(default)s]")
    add("--repeats", type=int, default=5, help="[%(default)s]")
    add("--batch", type=int, default=N_BATCH, help="texts in the one request [%(default)s]")
    add("--clients", type=int, default=N_CLIENTS, help="[%(default)s]")
    add("--peer-cmd", type=_named, action="append", default=[], metavar="NAME=COMMAND",
        help="another server; {port}, {model} and {threads} are filled in")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as directory:
            rows = asyncio.run(measure(options, Path(directory) / "servers.log"))
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


def _named(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise argparse.ArgumentTypeError(f"expected NAME=COMMAND, got {text!r}")
    return name, rest


if __name__ == "__main__":
    sys.exit(main())
