"""The scenario about speculation: it must pay where text repeats, and cost nothing elsewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from bench.http_client import Generation
from bench.lab import Lab
from bench.prompts import random_words
from bench.report import Row, Target
from bench.servers import Server
from bench.stats import median

STORY = """
The harbour master had kept the same notebook for thirty years. Every evening, after the last
boat was tied up, he wrote down the wind, the tide and the name of whoever had come in from the
sea. Most of the names were the same, and he could have written them with his eyes shut. But now
and then a stranger arrived, and then he took more care. He asked where they had come from, what
they carried and how long they meant to stay, and he wrote the answers in small, upright
letters. His daughter said that nobody would ever read the notebook. He agreed with her, and
kept writing all the same. One winter a storm broke the old wall of the harbour, and the
engineers who came to mend it asked how high the water had stood in other years. Nobody could
say. Then the harbour master fetched his notebooks from the attic, thirty of them, tied with
string, and laid them on the table. The engineers read for three days. When the wall was
finished it was higher than before by the width of a hand, and his daughter bought him a new
notebook with a blue cover.
""".split()
CHANGED = 2  # which word of the copy is another one
GUIDE_WORDS = 16  # of the copy, the changed one among them, so that the model sees what is asked


async def speculation(lab: Lab) -> list[Row]:
    """Decode speed with drafts and without: on a copy, and on text that repeats nothing."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    servers = {mode: lab.start_ours(("--speculate", mode), name=mode) for mode in ("auto", "off")}
    try:
        for repeat in range(lab.sizes.repeats):
            for mode, server in servers.items():
                copy = await lab.complete(server, _half_copied(lab, repeat), lab.sizes.copy_tokens)
                rates["copy", mode].append(copy.tokens_per_s)
                fresh = await _sampled(lab, server, repeat)
                rates["fresh", mode].append(fresh.tokens_per_s)
                await server.wait_idle()
    finally:
        for server in servers.values():
            server.stop()
    for (task, mode), values in rates.items():
        lab.record("speculation", task=task, mode=mode, tokens_per_s=values)
    rows = []
    for task, title, least in (
        ("copy", f"copy of a {lab.sizes.copy_words}-word text, one word changed", 1.3),
        ("fresh", "text that repeats nothing, temperature 1", 0.95),
    ):
        auto, off = median(rates[task, "auto"]), median(rates[task, "off"])
        rows.append(Row(title, "tok/s", auto, "--speculate off", off, auto / off,
                        Target("≥", least)))  # fmt: skip
    return rows


def _half_copied(lab: Lab, repeat: int) -> str:
    words = [f"Story {repeat + 1}.", *STORY[: lab.sizes.copy_words]]
    begun = words[:GUIDE_WORDS]
    begun[CHANGED] = "lighthouse"
    return f"Original text:\n{' '.join(words)}\n\nThe same with one change:\n{' '.join(begun)}"


async def _sampled(lab: Lab, server: Server, repeat: int) -> Generation:
    prompt = random_words(lab.sizes.stream_words, "fresh", repeat)
    # Greedy text of a small model falls into loops, which are copies too.
    return await replace(lab, temperature=1.0).complete(server, prompt, lab.sizes.single_tokens)
