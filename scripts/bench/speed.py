"""Scenarios about speed: one stream, many streams, a shared prompt, together or in a row."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from functools import partial

from bench.baseline import FLASH_ATTN
from bench.http_client import Generation
from bench.lab import Lab, Message, at_once, wall_s
from bench.prompts import random_words, unshared_prompts
from bench.report import Row, Target
from bench.servers import Server
from bench.stats import median

BARE = "bare loop"
SYSTEM = "You are a helpful assistant."
GAIN_TEMPERATURES = (1.0, 0.0)  # what clients get who ask for none, and greedy


async def single(lab: Lab) -> list[Row]:
    """One stream, greedy: tokens a second after the first token."""
    n_tokens = lab.sizes.single_tokens
    rates: dict[str, list[float]] = defaultdict(list)

    def messages(repeat: int) -> list[Message]:
        # The system message is given: servers differ in the one they would add themselves.
        words = random_words(lab.sizes.stream_words, "single", repeat)
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]

    async def measure(server: Server, repeat: int) -> None:
        generation = await lab.chat(server, messages(repeat), n_tokens)
        rates[server.name].append(generation.tokens_per_s)
        if server.is_ours:
            await server.wait_idle()
            for flash in FLASH_ATTN:
                rate = lab.baseline.decode_rate(messages(repeat), n_tokens, flash)
                rates[f"{BARE}, flash attention {flash}"].append(rate)

    await lab.in_turns(measure)
    for name, values in rates.items():
        lab.record("single", name=name, tokens_per_s=values)
    ours = median(rates.pop(lab.ours.name))
    others = {name: median(values) for name, values in rates.items()}
    bare = max((n for n in others if n.startswith(BARE)), key=lambda name: others[name])
    rows = [
        Row("1 stream, decode", "tok/s", ours, bare, others[bare], ours / others[bare],
            Target("≥", 0.95))
    ]  # fmt: skip
    for peer in lab.peers:
        other = others[peer.name]
        rows.append(Row("1 stream, decode", "tok/s", ours, peer.name, other, ours / other))
    return rows


async def streams(lab: Lab) -> list[Row]:
    """Several streams at once with nothing in common: tokens a second of all together."""
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)

    async def measure(server: Server, repeat: int) -> None:
        for n in lab.sizes.stream_counts:
            prompts = unshared_prompts(n, lab.sizes.stream_words, "streams", repeat, n)
            generations = await _complete_all(lab, server, prompts, n)
            n_tokens = sum(g.n_completion for g in generations)
            rates[server.name, n].append(n_tokens / wall_s(generations))
            await server.wait_idle()

    await lab.in_turns(measure, anew=True)
    for (name, n), values in rates.items():
        lab.record("streams", name=name, streams=n, tokens_per_s=values)
    rows = []
    for n in lab.sizes.stream_counts:
        ours = median(rates[lab.ours.name, n])
        for peer in lab.peers:
            other = median(rates[peer.name, n])
            title = f"{n} stream{'s' * (n > 1)}, unshared prompts"
            rows.append(Row(title, "tok/s", ours, peer.name, other, ours / other, Target("≥", 1.0)))
    return rows


async def shared(lab: Lab) -> list[Row]:
    """Many requests with one long system prompt: time for all, and the slowest first token."""
    sizes = lab.sizes
    walls: dict[str, list[float]] = defaultdict(list)
    first_tokens: dict[str, list[float]] = defaultdict(list)
    bounds: list[float] = []

    async def measure(server: Server, repeat: int) -> None:
        system = random_words(sizes.shared_words, "shared", repeat)
        users = unshared_prompts(sizes.shared_requests, 12, "shared users", repeat)
        requests = [
            partial(
                lab.chat,
                server,
                [{"role": "system", "content": system}, {"role": "user", "content": user}],
                sizes.shared_tokens,
            )
            for user in users
        ]
        generations = await at_once(requests, sizes.shared_together)
        walls[server.name].append(wall_s(generations))
        first_tokens[server.name].append(max(g.ttft_s for g in generations))
        if server.is_ours:
            await server.wait_idle()
            together = users[: sizes.shared_together]
            bare = [lab.baseline.shared_prefill(system, together, flash) for flash in FLASH_ATTN]
            bounds.append(min(b.seconds for b in bare))
            lab.record("shared", name=BARE, runs=[vars(b) for b in bare])

    await lab.in_turns(measure)
    for server in lab.servers:
        name = server.name
        lab.record("shared", name=name, wall_s=walls[name], last_first_token_s=first_tokens[name])
    title = f"{sizes.shared_requests} requests, one {sizes.shared_words}-word system prompt"
    wall, ttft = median(walls[lab.ours.name]), median(first_tokens[lab.ours.name])
    bound = median(bounds)
    rows = [
        Row(f"{title}: time", "s", wall, peer.name, median(walls[peer.name]),
            median(walls[peer.name]) / wall, Target("≥", 3.5))
        for peer in lab.peers
    ]  # fmt: skip
    rows.append(
        Row(f"{title}: slowest first token", "s", ttft, "one bare prefill", bound, ttft / bound,
            Target("≤", 1.3))
    )  # fmt: skip
    return rows


async def gain(lab: Lab) -> list[Row]:
    """What running together brings: eight streams at once, and eight in a row."""
    n = 8
    walls: dict[tuple[str, float, int], list[float]] = defaultdict(list)

    async def measure(server: Server, repeat: int) -> None:
        for temperature, n_together in itertools.product(GAIN_TEMPERATURES, (n, 1)):
            # Other words of the same number: the same ones would come from the cache.
            key = ("gain", repeat, n_together, temperature)
            prompts = unshared_prompts(n, lab.sizes.stream_words, *key)
            same_but = dataclasses.replace(lab, temperature=temperature)
            wall = wall_s(await _complete_all(same_but, server, prompts, n_together))
            walls[server.name, temperature, n_together].append(wall)
            await server.wait_idle()

    await lab.in_turns(measure)
    for (name, temperature, n_together), values in walls.items():
        lab.record("gain", name=name, temperature=temperature, together=n_together, wall_s=values)
    rows = []
    for temperature in GAIN_TEMPERATURES:
        ours = median(walls[lab.ours.name, temperature, n])
        row = median(walls[lab.ours.name, temperature, 1])
        # Drafts speed the lone greedy stream up: that ratio says little of running together.
        target = Target("≤", 0.7) if temperature else None
        title = f"{n} streams together, temperature {temperature:g}"
        rows.append(Row(title, "s", ours, "as many in a row", row, ours / row, target))
    return rows


async def _complete_all(
    lab: Lab, server: Server, prompts: list[str], n_together: int
) -> list[Generation]:
    requests = [partial(lab.complete, server, p, lab.sizes.stream_tokens) for p in prompts]
    return await at_once(requests, n_together)
