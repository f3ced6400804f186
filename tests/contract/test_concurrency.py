"""Several clients at once against a real server: nobody is cut off, starved or mixed up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.conftest import SMALL_CTX
from tests.contract.live import (
    CHAT,
    COMPLETIONS,
    health,
    load,
    stream_events,
    wait_idle,
)
from tests.contract.raw import Reply, post
from tests.fakes import wait_until

pytestmark = pytest.mark.usefixtures("same_worker")

ANIMALS = ("tiger", "horse", "eagle", "snake", "whale", "mouse", "sheep", "shark")


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run all calls at once; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def parrot(animal: str, *, max_tokens: int = 12) -> dict[str, Any]:
    """A text that any model goes on with by repeating its word."""
    return {
        "prompt": f"My pet is a {animal}. I love my {animal}. " * 4 + "My pet is a",
        "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True,
    }  # fmt: skip


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(c["text"] for e in events for c in e["choices"])


@pytest.mark.parametrize("n_clients", [2, 8])
def test_str_07_all_at_once_are_answered_each_with_its_own_and_health_goes_on(
    server: Any, n_clients: int
) -> None:
    wait_idle(server)
    ended = threading.Event()
    statuses: list[int] = []

    def watch() -> None:
        while not ended.wait(0.02):
            statuses.append(health(server))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        animals = ANIMALS[:n_clients]

        def ask(i: int) -> str:
            body = parrot(animals[i])
            if i % 2:
                return text_of([post(server.url, COMPLETIONS, body).json])
            return text_of(list(stream_events(server, COMPLETIONS, body)))

        texts = together([lambda i=i: ask(i) for i in range(n_clients)])  # type: ignore[misc]
    finally:
        ended.set()
        watcher.join()
    assert set(statuses) == {200}
    for animal, text in zip(animals, texts, strict=True):
        assert text.count(animal) >= 2
        assert not any(other in text for other in ANIMALS if other != animal)
    assert wait_idle(server).queued == 0


def test_str_07_eight_chats_at_once_end_with_their_own_counts(server: Any) -> None:
    subjects = ["the sea", "bread", "Rome", "snow", "music", "bees", "gold", "sleep"]

    def ask(subject: str) -> Any:
        return server.client().chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": f"Tell me one thing about {subject}."}],
            max_tokens=16, temperature=0,
        )  # fmt: skip

    answers = together([lambda s=s: ask(s) for s in subjects])  # type: ignore[misc]
    assert len({a.id for a in answers}) == 8
    assert len({a.choices[0].message.content for a in answers}) == 8
    for answer in answers:
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert 0 < answer.usage.completion_tokens <= 16


def test_str_07_more_clients_than_slots_are_all_answered(server: Any) -> None:
    replies = together(
        [
            lambda i=i: post(server.url, COMPLETIONS, parrot(ANIMALS[i % 8], max_tokens=4))  # type: ignore[misc]
            for i in range(20)
        ]
    )
    assert [r.status for r in replies] == [200] * 20
    assert wait_idle(server).running == 0


def test_str_06_another_request_does_not_end_a_stream(server: Any) -> None:
    stream = stream_events(server, COMPLETIONS, parrot("tiger", max_tokens=80))
    begun = [next(stream) for _ in range(3)]
    others = together(
        [
            lambda a=a: post(server.url, COMPLETIONS, parrot(a, max_tokens=4))  # type: ignore[misc]
            for a in ANIMALS[1:4]
        ]
    )
    assert [r.status for r in others] == [200] * 3
    events = [*begun, *stream]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["timings"]["predicted_n"] == 80
    assert text_of(events).count("tiger") > 4


def test_str_06_with_one_slot_the_next_waits_and_one_more_gets_a_429(small_server: Any) -> None:
    wait_idle(small_server)
    hello = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
    running = stream_events(small_server, COMPLETIONS, {**parrot("tiger"), "max_tokens": -1})
    begun = [next(running)]
    replies: list[Reply] = []
    waiting = threading.Thread(target=lambda: replies.append(post(small_server.url, CHAT, hello)))
    waiting.start()
    wait_until(lambda: load(small_server).queued == 1, 60)
    refused = {
        stream: post(small_server.url, CHAT, {**hello, "stream": stream})
        for stream in (False, True)
    }
    events = [*begun, *running]
    waiting.join()
    for reply in refused.values():
        assert reply.status == 429
        assert reply.error["type"] == "rate_limit_error"
        assert reply.error["code"] == "queue_full"
        assert int(reply.headers["retry-after"]) >= 1
    # Nobody cut the first one short, and who waited was answered.
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    timings = events[-1]["timings"]
    assert timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"] == SMALL_CTX
    assert replies[0].status == 200
    assert post(small_server.url, CHAT, hello).status == 200


def test_seeds_asked_together_give_answers_that_differ(server: Any) -> None:
    body = {
        "prompt": "My favourite animals are", "temperature": 1, "max_tokens": 8,
        "ignore_eos": True,
    }  # fmt: skip
    seeds = [1, 2, 3, 4] * 2
    texts = [
        text_of([reply.json])
        for reply in together(
            [lambda s=s: post(server.url, COMPLETIONS, {**body, "seed": s}) for s in seeds]  # type: ignore[misc]
        )
    ]
    assert len(set(texts)) >= 4
