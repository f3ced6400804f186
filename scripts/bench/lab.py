"""What the scenarios share: the servers, the sizes, and how requests are made."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.baseline import Baseline
from bench.http_client import BenchError, Exchange, Generation, read_generation, send
from bench.report import Row
from bench.servers import OURS, Server, ServerOptions, start_ours, start_peer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
REQUEST_TIMEOUT_S = 300.0
Message = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured. Lengths are tokens or words, as the names say."""

    repeats: int = 3
    single_tokens: int = 128
    stream_counts: tuple[int, ...] = (1, 4, 8, 16)
    stream_words: int = 40
    stream_tokens: int = 64
    shared_words: int = 800
    shared_requests: int = 16
    shared_together: int = 8
    shared_tokens: int = 32
    schema_answers: int = 5
    stall_prompt_tokens: int = 2000
    stall_events_before: int = 64
    cancel_samples: int = 5
    cancel_tokens: int = 600  # enough to be far from done when the client goes away
    cancel_work_s: float = 0.6  # how long a request works before its client goes away
    turns: int = 10
    turn_words: int = 24
    turn_tokens: int = 48
    memory_prompts: tuple[int, int] = (50, 500)
    memory_words: int = 24
    memory_tokens: int = 4
    idle_s: float = 10.0
    copy_words: int = 200
    copy_tokens: int = 160


QUICK = Sizes(
    repeats=1,
    single_tokens=24,
    stream_counts=(1, 4),
    stream_words=12,
    stream_tokens=12,
    shared_words=100,
    shared_requests=4,
    shared_together=2,
    shared_tokens=8,
    schema_answers=1,
    stall_prompt_tokens=1200,
    stall_events_before=12,
    cancel_samples=1,
    cancel_tokens=150,
    cancel_work_s=0.2,
    turns=3,
    turn_words=8,
    turn_tokens=8,
    memory_prompts=(8, 24),
    memory_words=8,
    memory_tokens=2,
    idle_s=2.0,
    copy_words=40,
    copy_tokens=24,
)


@dataclasses.dataclass
class Lab:
    """One run of the benchmark.

    :param servers: ours first, then the peers. All are up, but only one works at a time.
    :param facts: what servers say about themselves.
    :param failures: why a scenario could not be measured, by its name.
    :param raw: every measured value, by scenario, for the JSON file.
    """

    options: ServerOptions
    sizes: Sizes
    peer_commands: dict[str, str]
    serve_args: list[str]
    temperature: float
    logs: Path
    baseline: Baseline
    servers: list[Server] = dataclasses.field(default_factory=list)
    facts: dict[str, str] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    raw: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)

    @property
    def ours(self) -> Server:
        return self.servers[0]

    @property
    def peers(self) -> list[Server]:
        return self.servers[1:]

    def record(self, scenario: str, **values: object) -> None:
        self.raw.setdefault(scenario, []).append(values)

    def start_ours(self, extra: Sequence[str] = (), *, name: str = OURS) -> Server:
        """:param extra: flags for this one; ``name`` is then how it is called."""
        arguments = [*self.serve_args, *extra]
        return start_ours(self.options, self.logs / f"{name}.log", arguments)

    async def start_peer(self, name: str) -> Server:
        return await start_peer(
            name, self.peer_commands[name], self.options, self.logs / f"{name}.log"
        )

    async def warm_up(self, server: Server) -> None:
        await self.complete(server, "Once upon a time", 4)
        await server.wait_idle()

    async def start_again(self) -> None:
        """New processes for all servers that this program started.

        :raises BenchError: one did not start; then none runs.
        """
        try:
            for index, server in enumerate(self.servers):
                if server.popen is None:
                    continue
                server.stop()
                new = self.start_ours() if server.is_ours else await self.start_peer(server.name)
                self.servers[index] = new
                await self.warm_up(new)
        except BaseException:
            self.stop()
            self.servers.clear()  # the next scenario starts them
            raise

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    async def in_turns(
        self, measure: Callable[[Server, int], Awaitable[None]], *, anew: bool = False
    ) -> None:
        """Ours, peer, ours, peer …: the speed of a machine drifts, and so it drifts for all.

        :param anew: each time with new processes. Two of the same program may differ by a tenth
            for as long as they live, by where in memory they came to lie.
        """
        for repeat in range(self.sizes.repeats):
            if anew and repeat:
                await self.start_again()
            for server in self.servers:
                await measure(server, repeat)
                await server.wait_idle()

    # -- requests ---------------------------------------------------------------------------

    def chat_body(self, server: Server, messages: Sequence[Message], n_tokens: int) -> Any:
        return {**self._fields(server, n_tokens), "messages": list(messages)}

    def completion_body(self, server: Server, prompt: str, n_tokens: int) -> Any:
        return {**self._fields(server, n_tokens), "prompt": prompt}

    def _fields(self, server: Server, n_tokens: int) -> dict[str, Any]:
        return {
            "model": server.model,
            "max_tokens": n_tokens,
            "temperature": self.temperature,
            "seed": 1,
            "ignore_eos": True,  # so that every server makes the same number of tokens
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def chat(self, server: Server, messages: Sequence[Message], n_tokens: int) -> Generation:
        return await finish(
            await send(server.address, CHAT, self.chat_body(server, messages, n_tokens))
        )

    async def complete(self, server: Server, prompt: str, n_tokens: int) -> Generation:
        body = self.completion_body(server, prompt, n_tokens)
        return await finish(await send(server.address, COMPLETIONS, body))


async def finish(exchange: Exchange) -> Generation:
    """Wait for the end of a streamed reply and read it."""
    try:
        await asyncio.wait_for(exchange.wait_closed(), REQUEST_TIMEOUT_S)
    except asyncio.TimeoutError as exc:
        raise BenchError(f"no answer within {REQUEST_TIMEOUT_S:g} s") from exc
    finally:
        exchange.leave()
    return read_generation(exchange.sent_s, exchange.arrivals)


async def at_once(
    requests: Iterable[Callable[[], Awaitable[Generation]]], n_together: int
) -> list[Generation]:
    """Run the requests, so many at a time; results in the order of the requests."""
    waiting = list(enumerate(requests))[::-1]
    results: dict[int, Generation] = {}

    async def client() -> None:
        while waiting:
            index, request = waiting.pop()
            results[index] = await request()

    await asyncio.gather(*(client() for _ in range(n_together)))
    return [results[index] for index in sorted(results)]


def wall_s(generations: Sequence[Generation]) -> float:
    """From the first request sent to the last token."""
    return max(g.times_s[-1] for g in generations) - min(g.sent_s for g in generations)


Scenario = Callable[[Lab], Awaitable[list[Row]]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
