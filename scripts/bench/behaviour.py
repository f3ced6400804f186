"""Scenarios about behaviour under load: stalls, cancelling, reuse, memory, start and idling."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections import defaultdict
from functools import partial

from bench.http_client import BenchError, Exchange, Poller, send, text_times
from bench.lab import COMPLETIONS, Lab, Message, at_once
from bench.prompts import random_words
from bench.report import Row, Target
from bench.servers import Server
from bench.stats import gaps, median, percentile

MB = 1e6
CANCEL_GRACE_S = 0.05
CANCEL_POLL_S = 0.002
CANCEL_TIMEOUT_S = 60.0
_SAME_STEP_S = 0.001


async def stall(lab: Lab) -> list[Row]:
    """A running stream while a long prompt arrives: its slowest tokens against those before."""
    sizes = lab.sizes
    ratios: dict[str, list[float]] = defaultdict(list)
    before_s: dict[str, list[float]] = defaultdict(list)
    during_s: dict[str, list[float]] = defaultdict(list)

    async def measure(server: Server, repeat: int) -> None:
        prompt = random_words(sizes.stream_words, "stall", repeat)
        body = lab.completion_body(server, prompt, lab.options.ctx_size - 2 * sizes.stream_words)
        body["temperature"] = 1.0  # greedy text falls into loops, which speculation speeds up
        stream = await send(server.address, COMPLETIONS, body)
        try:
            await stream.wait_events(sizes.stall_events_before)
            arrival_s = time.perf_counter()
            long = await lab.complete(server, _long_prompt(lab, "stall", repeat), 4)
            if stream.closed:
                raise BenchError("the running stream ended before the long prompt was read")
        finally:
            stream.leave()
        times_s = text_times(stream.arrivals)
        before = _single_steps_s([t for t in times_s if t <= arrival_s])
        first_s = long.times_s[0]
        during = [
            late - early
            for early, late in zip(times_s, times_s[1:], strict=False)
            if late > arrival_s and early < first_s
        ]
        before_s[server.name].append(median(before))
        during_s[server.name].append(percentile(during, 99))
        ratios[server.name].append(percentile(during, 99) / median(before))
        lab.record("stall", name=server.name, before_s=before, during_s=during, ttft_s=long.ttft_s)

    await lab.in_turns(measure)
    name = lab.ours.name
    title = f"stream beside a {_long_tokens(lab)}-token prompt: ITL p99"
    worst_ms, before_ms = 1e3 * median(during_s[name]), 1e3 * median(before_s[name])
    ratio = median(ratios[name])
    rows = [Row(title, "ms", worst_ms, "median before", before_ms, ratio, Target("≤", 4))]
    for peer in lab.peers:
        other = median(ratios[peer.name])
        rows.append(Row(f"{title} ÷ median", "", ratio, peer.name, other, ratio / other))
    return rows


def _single_steps_s(times_s: list[float]) -> list[float]:
    """The steps that brought one token. An accepted draft's come at once, after a longer step."""
    steps = gaps(times_s)
    single = [
        step
        for step, after in zip(steps, [*steps[1:], math.inf], strict=True)
        if min(step, after) > _SAME_STEP_S
    ]
    return single or steps


async def cancel(lab: Lab) -> list[Row]:
    """From the moment the client closes its socket to the moment its slot is free."""
    rows = []
    kinds = [(phase, streamed) for streamed in (True, False) for phase in ("decode", "prefill")]
    for phase, streamed in kinds:
        title = f"client gone to slot free, {'' if streamed else 'not '}streamed, in {phase}"
        found: dict[str, _Cancelled] = {}
        for server in lab.servers:
            poller = Poller(server.address)
            if await server.running(poller) is not None:
                found[server.name] = await _cancel_some(lab, server, poller, phase, streamed)
                lab.record("cancel", name=server.name, kind=title, **vars(found[server.name]))
            poller.close()
        ours = found.pop(lab.ours.name)
        limit_s = 2 * ours.worked_s / max(ours.n_steps, 1) + CANCEL_GRACE_S
        worst_s = max(ours.waits_s)
        rows.append(
            Row(title, "ms", 1e3 * worst_s, "2 steps + 50 ms", 1e3 * limit_s, worst_s / limit_s,
                Target("≤", 1.0))
        )  # fmt: skip
        for name, peer in found.items():
            other_s = max(peer.waits_s)
            rows.append(Row(title, "ms", 1e3 * worst_s, name, 1e3 * other_s, worst_s / other_s))
    return rows


@dataclasses.dataclass
class _Cancelled:
    """Seconds until the slot was free, of each sample; and the steps made while it worked."""

    waits_s: list[float] = dataclasses.field(default_factory=list)
    n_steps: float = 0.0
    worked_s: float = 0.0


async def _cancel_some(
    lab: Lab, server: Server, poller: Poller, phase: str, streamed: bool
) -> _Cancelled:
    found = _Cancelled()
    # A peer may work on to the end each time: one sample of it is enough.
    for sample in range(lab.sizes.cancel_samples if server.is_ours else 1):
        exchange = await _start_work(lab, server, phase, streamed, sample)
        n_steps, worked_s = await _watch_work(lab, server, poller, exchange)
        found.n_steps, found.worked_s = found.n_steps + n_steps, found.worked_s + worked_s
        found.waits_s.append(await _leave(server, poller, exchange))
    return found


async def _start_work(
    lab: Lab, server: Server, phase: str, streamed: bool, sample: int
) -> Exchange:
    """A request that will be in ``phase`` for long."""
    key = ("cancel", phase, streamed, sample)
    if phase == "prefill":
        prompt = _long_prompt(lab, *key)
    else:
        prompt = random_words(lab.sizes.stream_words, *key)
    n_tokens = 8 if phase == "prefill" else lab.sizes.cancel_tokens
    body = lab.completion_body(server, prompt, n_tokens)
    if not streamed:
        del body["stream"], body["stream_options"]
    return await send(server.address, COMPLETIONS, body)


async def _watch_work(
    lab: Lab, server: Server, poller: Poller, exchange: Exchange
) -> tuple[float, float]:
    """Let the request work for a while; how many steps were made in how many seconds.

    :raises BenchError: when it is finished by then: nothing is left to cancel.
    """
    started_s = time.perf_counter()
    while not await server.running(poller):
        if exchange.closed or time.perf_counter() - started_s > CANCEL_TIMEOUT_S:
            raise BenchError("a request to be cancelled did not get to work")
        await asyncio.sleep(CANCEL_POLL_S)
    before = (await server.steps(poller), time.perf_counter()) if server.is_ours else (0.0, 0.0)
    await asyncio.sleep(lab.sizes.cancel_work_s)
    after = (await server.steps(poller), time.perf_counter()) if server.is_ours else (0.0, 0.0)
    if exchange.closed:
        raise BenchError("a request to be cancelled was finished before; take a longer prompt")
    return after[0] - before[0], after[1] - before[1]


async def _leave(server: Server, poller: Poller, exchange: Exchange) -> float:
    """Seconds from closing the socket to an idle server, the answer to the question included."""
    left_s = time.perf_counter()
    exchange.leave()
    while await server.running(poller):
        if server.is_ours and time.perf_counter() - left_s > CANCEL_TIMEOUT_S:
            raise BenchError("a request whose client is gone works on")
        # Some peers work on for long: asking them less often then disturbs them less.
        await asyncio.sleep(max(CANCEL_POLL_S, 0.02 * (time.perf_counter() - left_s)))
    return time.perf_counter() - left_s


async def multiturn(lab: Lab) -> list[Row]:
    """A growing conversation: tokens evaluated in a turn against tokens that were new in it."""
    sizes = lab.sizes
    last: dict[str, tuple[int, int]] = {}  # evaluated and new in the last turn
    for server in lab.servers:
        messages: list[Message] = [{"role": "system", "content": "You are a helpful assistant."}]
        n_known = 0
        for turn in range(sizes.turns):
            words = random_words(sizes.turn_words, "turns", turn)
            messages.append({"role": "user", "content": words})
            answer = await lab.chat(server, messages, sizes.turn_tokens)
            messages.append({"role": "assistant", "content": answer.text})
            n_evaluated, n_new = answer.n_prompt - answer.n_cached, answer.n_prompt - n_known
            n_known = answer.n_prompt + answer.n_completion
            last[server.name] = (n_evaluated, n_new)
            lab.record("multiturn", name=server.name, turn=turn + 1, evaluated=n_evaluated,
                       new=n_new, prompt=answer.n_prompt)  # fmt: skip
        await server.wait_idle()
    title = f"chat, turn {sizes.turns}: prompt tokens evaluated"
    n_evaluated, n_new = last[lab.ours.name]
    rows = [Row(title, "", n_evaluated, "new tokens", n_new, n_evaluated / n_new, Target("≤", 1.2))]
    for peer in lab.peers:
        other = last[peer.name][0]
        rows.append(Row(title, "", n_evaluated, peer.name, other, n_evaluated / max(other, 1)))
    return rows


async def memory(lab: Lab) -> list[Row]:
    """Resident memory of a fresh server after a few and after many distinct prompts."""
    sizes = lab.sizes
    server = lab.start_ours()
    rss: list[int] = []
    try:
        done = 0
        for n_prompts in sizes.memory_prompts:
            prompts = [
                random_words(sizes.memory_words, "memory", i) for i in range(done, n_prompts)
            ]
            await at_once(
                [partial(lab.complete, server, p, sizes.memory_tokens) for p in prompts],
                lab.options.slots,
            )
            await server.wait_idle()
            done = n_prompts
            rss.append(server.rss_bytes())
    finally:
        server.stop()
    lab.record("memory", name=server.name, prompts=sizes.memory_prompts, rss_bytes=rss)
    few, many = sizes.memory_prompts
    return [
        Row(f"resident memory after {many} distinct prompts", "MB", rss[1] / MB,
            f"after {few}", rss[0] / MB, rss[1] / rss[0], Target("≤", 1.02))
    ]  # fmt: skip


async def start(lab: Lab) -> list[Row]:
    """From the start of the process to ready, and resident memory once it has answered."""
    start_s: dict[str, list[float]] = defaultdict(list)
    rss: dict[str, list[float]] = defaultdict(list)
    for repeat in range(lab.sizes.repeats):
        for name in (None, *lab.peer_commands):
            server = lab.start_ours() if name is None else await lab.start_peer(name)
            try:
                ready_rss = server.rss_bytes()
                question: list[Message] = [{"role": "user", "content": random_words(8, repeat)}]
                await lab.chat(server, question, 8)  # every weight was read then
                start_s[server.name].append(server.start_s)
                rss[server.name].append(server.rss_bytes())
                lab.record("start", name=server.name, start_s=server.start_s,
                           rss_ready_bytes=ready_rss, rss_bytes=rss[server.name][-1])  # fmt: skip
            finally:
                server.stop()
    ours, *peers = start_s
    rows = []
    for peer in peers:
        mine, other = median(start_s[ours]), median(start_s[peer])
        rows.append(Row("start to ready", "s", mine, peer, other, mine - other,
                        Target("≤", 0.5, "s")))  # fmt: skip
        mine, other = median(rss[ours]) / MB, median(rss[peer]) / MB
        rows.append(Row("resident memory, one request answered", "MB", mine, peer, other,
                        mine - other, Target("≤", 80, "MB")))  # fmt: skip
    return rows


async def idle(lab: Lab) -> list[Row]:
    """CPU time of a server that has nothing to do."""
    used: dict[str, float] = {}
    for server in lab.servers:
        if server.process is None:
            continue
        await server.wait_idle()
        await asyncio.sleep(1)  # the end of the last request may still be written down
        before_s = server.cpu_s()
        await asyncio.sleep(lab.sizes.idle_s)
        used[server.name] = server.cpu_s() - before_s
    lab.record("idle", seconds=lab.sizes.idle_s, cpu_s=used)
    mine = used.pop(lab.ours.name)
    title = f"idle for {lab.sizes.idle_s:g} s: CPU"
    # A clock tick is 10 ms: this is "none" up to the rounding of the clock and a few timers.
    target = Target("≤", 0.05, "s")
    if not used:
        return [Row(title, "s", mine, "nothing", 0.0, mine, target)]
    return [Row(title, "s", mine, name, other, mine, target) for name, other in used.items()]


def _long_tokens(lab: Lab) -> int:
    """``stall_prompt_tokens``, or what a slot takes with room for a few more."""
    return min(lab.sizes.stall_prompt_tokens, lab.options.ctx_size - 32)


def _long_prompt(lab: Lab, *key: object) -> str:
    n_words = n_tokens = _long_tokens(lab)
    while lab.baseline.count(text := random_words(n_words, *key)) > n_tokens:
        n_words = int(n_words * 0.98)
    return text
