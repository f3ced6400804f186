"""Streams on the wire: framing to the byte, clients that leave, text that is cut anywhere."""

from __future__ import annotations

import codecs
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.llm.context import DecodeError
from ferrum_local.server.http_server import HttpServer
from tests.contract.live import (
    CHAT,
    COMPLETIONS,
    RawClient,
    load,
    stream_events,
    wait_idle,
)
from tests.contract.raw import post
from tests.fakes import wait_until

pytestmark = pytest.mark.usefixtures("same_worker")

HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say hello in one short sentence."}],
    "temperature": 0,
    "max_tokens": 12,
}
ENDLESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count as far as you can."}],
    "max_tokens": 1900,
    "ignore_eos": True,
}
_subjects = itertools.count()


def long_prompt(n_numbers: int = 400) -> str:
    """A prompt that no slot holds yet; each of its digits is a token."""
    first = next(_subjects)
    return " ".join(f"{(first * 7919 + i * 31) % 1000:03}" for i in range(n_numbers))


# Framing


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        (CHAT, HI),
        (COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}),
    ],
)
def test_one_event_is_one_chunk_and_the_connection_can_be_used_again(
    server: Any, path: str, request_body: dict[str, Any]
) -> None:
    with RawClient(server) as client:
        for _ in range(2):
            asked_s = time.monotonic()
            client.post(path, {**request_body, "stream": True}, headers={"X-Request-Id": "me-1"})
            status, headers = client.read_head()
            waited_ms = 1000 * (time.monotonic() - asked_s)
            assert status == 200
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["cache-control"] == "no-cache"
            assert headers["x-accel-buffering"] == "no"
            assert headers["transfer-encoding"] == "chunked"
            assert "content-length" not in headers
            assert headers["x-request-id"] == "me-1"
            assert headers["openai-processing-ms"].isdecimal()
            assert int(headers["openai-processing-ms"]) <= waited_ms + 1  # it is rounded
            *events, done = [c for c in client.chunks() if not c.startswith(b":")]
            assert done == b"data: [DONE]\n\n"
            for event in events:
                assert event.startswith(b'data: {"id":"')
                assert event.endswith(b"}\n\n")
                assert event.count(b"\n") == 2
                json.loads(event.removeprefix(b"data: "))
        client.post(path, request_body)
        status, headers = client.read_head()
        assert status == 200
        whole = json.loads(client.file.read(int(headers["content-length"])))
        streamed = [json.loads(e.removeprefix(b"data: "))["choices"][0] for e in events]
        assert text_of(streamed) == text_of(whole["choices"])


def text_of(choices: list[dict[str, Any]]) -> str:
    return "".join(
        c.get("text") or c.get("delta", c.get("message", {})).get("content") or "" for c in choices
    )


def test_a_request_sent_ahead_is_answered_after_the_stream(server: Any) -> None:
    with RawClient(server) as client:
        client.post(CHAT, {**HI, "stream": True})
        client.post(CHAT, HI)
        assert client.read_head()[0] == 200
        assert list(client.chunks())[-1] == b"data: [DONE]\n\n"
        status, headers = client.read_head()
        assert status == 200
        assert json.loads(client.file.read(int(headers["content-length"])))["choices"]


def test_a_client_that_wants_the_connection_closed_gets_that(server: Any) -> None:
    with RawClient(server) as client:
        client.post(CHAT, {**HI, "stream": True}, headers={"Connection": "close"})
        assert client.read_head()[1]["connection"] == "close"
        assert list(client.chunks())[-1] == b"data: [DONE]\n\n"
        assert client.is_closed_by_peer()


def test_an_http_1_0_client_gets_the_events_unchunked_to_the_end_of_the_connection(
    server: Any,
) -> None:
    with RawClient(server) as client:
        client.post(CHAT, {**HI, "stream": True}, version="HTTP/1.0")
        status, headers = client.read_head()
        assert status == 200
        assert "transfer-encoding" not in headers
        body = client.file.read()
    assert body.startswith(b"data: {")
    assert body.endswith(b"}\n\ndata: [DONE]\n\n")


# Clients that leave


def test_str_01_a_client_that_leaves_stops_the_decoding(server: Any) -> None:
    before = wait_idle(server)
    events = stream_events(server, CHAT, ENDLESS)
    for _ in zip(range(4), events, strict=False):  # the role and three pieces of text
        pass
    events.close()  # type: ignore[attr-defined]
    after = wait_idle(server)
    assert after.cancelled == before.cancelled + 1
    assert after.generated - before.generated < 500
    again = post(server.url, CHAT, HI)
    assert again.status == 200
    n_new = again.json["usage"]["completion_tokens"]
    assert load(server).generated - after.generated <= n_new  # nobody else generates


def test_str_01_all_choices_and_prompts_of_a_left_stream_stop(server: Any) -> None:
    before = wait_idle(server)
    events = stream_events(
        server, COMPLETIONS,
        {"prompt": ["One", "Two"], "n": 2, "max_tokens": 1900, "ignore_eos": True},
    )  # fmt: skip
    for _ in zip(range(4), events, strict=False):
        pass
    events.close()  # type: ignore[attr-defined]
    after = wait_idle(server)
    assert after.cancelled > before.cancelled
    assert after.generated - before.generated < 4 * 500


@pytest.mark.parametrize("stream", [True, False])
def test_str_02_03_a_client_that_leaves_during_prefill_stops_it(server: Any, stream: bool) -> None:
    before = wait_idle(server)
    text = long_prompt()
    with RawClient(server) as client:
        client.post(COMPLETIONS, {"prompt": text, "max_tokens": 1, "stream": stream})
        wait_until(lambda: load(server).running == 1, 60)
    after = wait_idle(server)
    assert after.cancelled == before.cancelled + 1
    assert after.generated == before.generated
    assert after.evaluated - before.evaluated < sum(c.isdigit() for c in text)


def test_str_03_an_unstreamed_request_given_up_is_cancelled(server: Any) -> None:
    before = wait_idle(server)
    with RawClient(server) as client:
        client.post(CHAT, ENDLESS)
        wait_until(lambda: load(server).generated > before.generated, 60)
    after = wait_idle(server)
    assert after.cancelled == before.cancelled + 1
    assert after.generated - before.generated < 1000
    assert post(server.url, CHAT, HI).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_str_03_one_given_up_while_it_waits_leaves_the_queue(
    small_server: Any, stream: bool
) -> None:
    before = wait_idle(small_server)
    busy = stream_events(small_server, CHAT, {**ENDLESS, "max_tokens": None})
    next(busy)
    with RawClient(small_server) as waiting:
        waiting.post(CHAT, {**HI, "stream": stream})
        wait_until(lambda: load(small_server).queued == 1, 60)
    wait_until(lambda: load(small_server).queued == 0, 60)
    assert load(small_server).running == 1
    busy.close()  # type: ignore[attr-defined]
    assert wait_idle(small_server).cancelled == before.cancelled + 2
    assert post(small_server.url, CHAT, HI).status == 200


def test_str_05_cancel_and_ask_again_twenty_times(server: Any) -> None:
    for i in range(20):
        events = stream_events(server, CHAT, ENDLESS)
        for _ in zip(range(1 + i % 3), events, strict=False):
            pass
        events.close()  # type: ignore[attr-defined]
        assert post(server.url, CHAT, {**ENDLESS, "max_tokens": 1}).status == 200
    assert wait_idle(server).running == 0


# Text that is cut anywhere


def expected_text(entries: list[dict[str, Any]]) -> str:
    """What Python's own decoder makes of the tokens' bytes, less half a character at the end."""
    data = bytes(itertools.chain.from_iterable(entry["bytes"] for entry in entries))
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


@pytest.mark.parametrize(
    "prompt",
    ["🦙🎉🔥🦙🎉🔥🦙🎉🔥🦙🎉🔥", "你好世界，你好世界，你好世界，", "𝒽𝑒𝓁𝓁𝑜 𝒽𝑒𝓁𝓁𝑜 𝒽𝑒𝓁𝓁𝑜 𝒽𝑒𝓁𝓁𝑜 "],
    ids=["emoji", "chinese", "script"],
)
def test_str_09_max_tokens_inside_a_character_drops_the_half(server: Any, prompt: str) -> None:
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    longest = post(server.url, COMPLETIONS, {**body, "max_tokens": 9}).json["choices"][0]["text"]
    assert not longest.isascii()
    texts = []
    for n in range(1, 9):
        for stream in (False, True):
            reply = post(server.url, COMPLETIONS, {**body, "max_tokens": n, "stream": stream})
            choices = (
                [e["choices"][0] for e in reply.events[:-1]] if stream else reply.json["choices"]
            )
            texts.append(text_of(choices))
            assert choices[-1]["finish_reason"] == "length"
        assert texts[-2] == texts[-1]
        assert "\ufffd" not in texts[-1]
        assert longest.startswith(texts[-1])
    # Fewer texts than cuts: some cuts were inside a character.
    assert len(set(texts)) < 8


@pytest.mark.parametrize("stream", [False, True])
def test_str_09_random_bytes_are_always_valid_text(server: Any, stream: bool) -> None:
    not_ascii = 0
    for seed in range(3):
        reply = post(
            server.url,
            CHAT,
            {
                "messages": [{"role": "user", "content": "🦙 Write emojis and 漢字 only: 🎉"}],
                "temperature": 2, "min_p": 0, "top_k": 0, "seed": seed, "n": 8, "max_tokens": 12,
                "ignore_eos": True, "logprobs": True, "stream": stream,
            },
        )  # fmt: skip
        assert reply.status == 200
        texts, entries = by_choice(reply.events[:-1] if stream else [reply.json])
        assert len(texts) == 8
        for index, text in texts.items():
            assert len(entries[index]) == 12
            assert text == expected_text(entries[index])
            not_ascii += not text.isascii()
    assert not_ascii  # else the cases were too easy


def by_choice(
    bodies: list[dict[str, Any]],
) -> tuple[dict[int, str], dict[int, list[dict[str, Any]]]]:
    """Each choice's text and log-probability entries, of an answer or of a stream's events."""
    texts: dict[int, str] = {}
    entries: dict[int, list[dict[str, Any]]] = {}
    for body in bodies:
        for choice in body["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + text_of([choice])
            logprobs = choice["logprobs"] or {"content": []}
            entries.setdefault(index, []).extend(logprobs["content"])
    return texts, entries


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_str_10_a_stop_over_any_two_tokens_never_leaks(server: Any, path: str) -> None:
    prompt = "Write the numbers from one to nine as words."
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    if path == CHAT:
        body |= {"messages": [{"role": "user", "content": prompt}]}
        whole = post(server.url, path, {**body, "logprobs": True}).json["choices"][0]
        tokens = [entry["token"] for entry in whole["logprobs"]["content"]]
    else:
        body |= {"prompt": prompt}
        whole = post(server.url, path, {**body, "logprobs": 0}).json["choices"][0]
        tokens = whole["logprobs"]["tokens"]
    text = text_of([whole])
    assert "".join(tokens) == text
    for left, right in itertools.islice(itertools.pairwise(tokens), 2, 12, 3):
        stop = left[-1:] + right[:1]
        near_miss = left + right + "\x00"
        events = post(server.url, path, {**body, "stop": [near_miss, stop], "stream": True}).events[
            :-1
        ]
        assert text_of([e["choices"][0] for e in events]) == text[: text.index(stop)]
        assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_str_10_a_question_mark_and_newline_as_stop(server: Any) -> None:
    body = {
        "prompt": "Q: Who?\nQ: What?\nQ: Where?\nQ: When?\nQ:", "temperature": 0,
        "max_tokens": 16, "ignore_eos": True,
    }  # fmt: skip
    whole = post(server.url, COMPLETIONS, body).json["choices"][0]["text"]
    assert "?\n" in whole
    events = post(server.url, COMPLETIONS, {**body, "stop": ["?\n"], "stream": True}).events[:-1]
    assert text_of([e["choices"][0] for e in events]) == whole[: whole.index("?\n")]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "fields", "n_choices"),
    [
        (CHAT, {"n": 2}, 2),
        (COMPLETIONS, {"n": 2}, 2),
        (COMPLETIONS, {"prompt": ["One", "Two", "Three"]}, 3),
    ],
)
def test_str_13_usage_comes_once_however_many_choices(
    server: Any, path: str, fields: dict[str, Any], n_choices: int
) -> None:
    body = {
        **({"messages": HI["messages"]} if path == CHAT else {"prompt": "One"}), **fields,
        "max_tokens": 3, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    *events, last, done = post(
        server.url, path, {**body, "stream_options": {"include_usage": True}}
    ).events
    assert done == "[DONE]"
    assert all(e["usage"] is None and len(e["choices"]) == 1 for e in events)
    finished = [e["choices"][0]["index"] for e in events if e["choices"][0]["finish_reason"]]
    assert sorted(finished) == list(range(n_choices))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3 * n_choices
    for options in ({"include_usage": False}, {"include_usage": None}, {}, None):
        events = post(server.url, path, {**body, "stream_options": options}).events[:-1]
        assert all("usage" not in e and e["choices"] for e in events)


# Faults


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_str_14_a_fault_of_the_model_ends_the_stream_and_not_the_server(
    engine: LocalEngine, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {
        **({"messages": HI["messages"]} if path == CHAT else {"prompt": "One two three"}),
        "max_tokens": 64, "ignore_eos": True, "temperature": 0,
    }  # fmt: skip
    with HttpServer(engine) as server:
        url = str(server.url)
        healthy = post(url, path, {**body, "max_tokens": 8})
        assert healthy.status == 200
        (runtime,) = engine._runtimes.llms.values()
        monkeypatch.setattr(runtime._context, "decode", failing_after(6, runtime._context.decode))
        *events, last = post(url, path, {**body, "stream": True}).events
        texts = [text_of(e["choices"]) for e in events]
        assert len([t for t in texts if t]) >= 4
        assert all(e["choices"][0]["finish_reason"] is None for e in events)
        assert set(last) == {"error"}
        assert last["error"]["type"] == "server_error"
        assert last["error"]["code"] == "generation_failed"
        # Unstreamed, the same fault is a 500 without a traceback.
        monkeypatch.setattr(runtime._context, "decode", failing_after(6, runtime._context.decode))
        failed = post(url, path, body)
        assert failed.status == 500
        assert failed.error["code"] == "generation_failed"
        assert "Traceback" not in failed.body.decode()
        monkeypatch.undo()
        again = post(url, path, {**body, "max_tokens": 8})
        assert text_of(again.json["choices"]) == text_of(healthy.json["choices"])
        runtime.runner.check()


def failing_after(n_steps: int, decode: Callable[[], None]) -> Callable[[], None]:
    """``decode``, that fails as llama.cpp does after ``n_steps`` good steps, once."""
    steps = itertools.count()

    def step() -> None:
        if next(steps) == n_steps:
            raise DecodeError(-3)
        decode()

    return step
