"""Scenario about structured output: one record of five fields, whole and for each token."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from bench.http_client import BenchError, Generation, send
from bench.lab import CHAT, Lab, Message, finish
from bench.prompts import random_words
from bench.report import Row, Target
from bench.servers import Server
from bench.stats import median

CUSTOMER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer_full_name": {"type": "string", "maxLength": 20},
        "customer_age_in_years": {"type": "integer", "minimum": 1, "maximum": 99},
        "subscription_category": {"enum": ["basic", "premium", "enterprise"]},
        "is_active_subscriber": {"type": "boolean"},
        "preferred_contact_channel": {"enum": ["email", "phone", "post"]},
    },
    "required": [
        "customer_full_name",
        "customer_age_in_years",
        "subscription_category",
        "is_active_subscriber",
        "preferred_contact_channel",
    ],
    "additionalProperties": False,
}
MAX_TOKENS = 200
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "customer", "strict": True, "schema": CUSTOMER},
}


async def schema(lab: Lab) -> list[Row]:
    """Answers to a JSON schema against a peer's, and against as many tokens of free text."""
    record_s: dict[str, list[float]] = defaultdict(list)
    token_s: list[float] = []
    free_token_s: list[float] = []

    async def measure(server: Server, repeat: int) -> None:
        for i in range(lab.sizes.schema_answers):
            messages = _messages(repeat, i)
            record = await _record(lab, server, messages)
            took_s = record.times_s[-1] - record.sent_s
            record_s[server.name].append(took_s)
            lab.record("schema", name=server.name, seconds=took_s, tokens=record.n_completion)
            if server.is_ours:
                # The prompt is cached for both: only the answers differ.
                record = await _record(lab, server, messages)
                free = await lab.chat(server, messages, record.n_completion)
                token_s.append((record.times_s[-1] - record.sent_s) / record.n_completion)
                free_token_s.append((free.times_s[-1] - free.sent_s) / free.n_completion)

    await lab.in_turns(measure)
    lab.record("schema", name=lab.ours.name, token_s=token_s, free_token_s=free_token_s)
    ours = median(record_s[lab.ours.name])
    rows = []
    for peer in lab.peers:
        theirs = median(record_s[peer.name])
        rows.append(
            Row("a record of 5 fields by JSON schema", "s", ours, peer.name, theirs, theirs / ours,
                Target("≥", 2.5))
        )  # fmt: skip
    constrained, free = 1e3 * median(token_s), 1e3 * median(free_token_s)
    rows.append(
        Row("the same, time a token", "ms", constrained, "free text, as many tokens", free,
            constrained / free, Target("≤", 1.0))
    )  # fmt: skip
    return rows


def _messages(repeat: int, i: int) -> list[Message]:
    words = random_words(6, "schema", repeat, i)
    return [
        {"role": "system", "content": "You answer in JSON."},
        {"role": "user", "content": f"Invent a customer who likes these: {words}."},
    ]


async def _record(lab: Lab, server: Server, messages: list[Message]) -> Generation:
    body = lab.chat_body(server, messages, MAX_TOKENS)
    del body["ignore_eos"]
    generation = await finish(await send(server.address, CHAT, {**body, "response_format": FORMAT}))
    try:
        fields = json.loads(generation.text)
    except ValueError as exc:
        raise BenchError(f"{server.name} answered no JSON: {generation.text[:80]!r}") from exc
    if list(fields) != list(CUSTOMER["properties"]):
        raise BenchError(f"{server.name} answered other fields: {list(fields)}")
    return generation
