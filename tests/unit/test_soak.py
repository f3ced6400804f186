"""What the soak test calls a violation: one broken reply of each kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from soaking.checks import (
    DONE,
    MIB,
    Malformed,
    answer_problems,
    certain_beginning,
    error_problems,
    judge_rss,
    read_events,
    read_json,
    read_metrics,
    stream_problems,
    token_text,
)
from soaking.http_client import encode_request

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
STREAM = {**CHAT, "stream": True}
USAGE = {
    "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3},
}  # fmt: skip


def answer(*texts: str, reason: str = "stop", **usage: Any) -> dict[str, Any]:
    return {
        "choices": [
            {"index": i, "message": {"content": text}, "finish_reason": reason}
            for i, text in enumerate(texts)
        ],
        "usage": {**USAGE, **usage},
    }


def chunk(content: str | None = None, *, id: str = "c", **choice: Any) -> str:
    delta = {"role": "assistant", "content": ""} if content is None else {"content": content}
    first = {"index": 0, "delta": delta, "finish_reason": None, **choice}
    return json.dumps({"id": id, "choices": [first]})


def end(reason: str = "stop", **choice: Any) -> str:
    return chunk("", finish_reason=reason, **choice)


def test_good_replies_are_not_complained_of() -> None:
    assert not list(answer_problems(answer("Hello"), CHAT))
    assert not list(answer_problems(answer("Hello", "Hey"), {**CHAT, "n": 2}))
    assert not list(stream_problems([chunk(), chunk("Hel"), chunk("lo"), end(), DONE], STREAM))
    error = {"error": {"message": "no", "type": "t", "param": None, "code": None}}
    assert not list(error_problems(429, {"retry-after": "2"}, json.dumps(error).encode()))


@pytest.mark.parametrize(
    ("reply", "request_body", "complaint"),
    [
        (answer("a", total_tokens=8), CHAT, "does not add up"),
        (answer("a", completion_tokens=9, total_tokens=14), CHAT, "at most 4"),
        (answer("a", prompt_tokens_details={"cached_tokens": 6}), CHAT, "6 cached of 5"),
        (answer("a"), {**CHAT, "n": 2}, "instead of 2"),
        (answer("a", reason="cancelled"), CHAT, "finish_reason"),
        (answer("one. two"), {**CHAT, "stop": [".", "!"]}, "stop string"),
        ({**answer("a"), "usage": None}, CHAT, "no usage"),
    ],
)
def test_a_broken_answer_is_noticed(
    reply: dict[str, Any], request_body: dict[str, Any], complaint: str
) -> None:
    assert complaint in " ".join(answer_problems(reply, request_body))


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([chunk(), end()], "[DONE] is not the one last"),
        ([chunk(), DONE, end(), DONE], "[DONE] is not the one last"),
        ([chunk(), '{"error": {}}', DONE], "error event"),
        ([chunk(), end(id="other"), DONE], "several ids"),
        ([chunk("a"), end(), DONE], "begin with its role"),
        ([chunk(), end(), chunk("more"), DONE], "after its end"),
        ([chunk(), chunk("a"), DONE], "ended instead of 1"),
    ],
)
def test_a_broken_stream_is_noticed(events: list[str], complaint: str) -> None:
    assert complaint in " ".join(stream_problems(events, STREAM))


def test_usage_on_a_stream_comes_when_asked_for_and_last() -> None:
    asked = {**STREAM, "stream_options": {"include_usage": True}}
    plain = [json.loads(chunk()), json.loads(end())]
    last = {"id": "c", "choices": [], "usage": USAGE}
    good = [json.dumps({**c, "usage": None}) for c in plain] + [json.dumps(last), DONE]
    assert not list(stream_problems(good, asked))
    assert "not asked for" in " ".join(stream_problems(good, STREAM))
    early = [json.dumps({**plain[0], "usage": USAGE}), *good[1:]]
    assert "last chunk of its own" in " ".join(stream_problems(early, asked))


def test_framing_and_json_are_strict() -> None:
    assert read_events(b": keep-alive\n\ndata: {}\n\ndata: [DONE]\n\n") == ["{}", DONE]
    for body in (b"data: {}", b"data: {\n}\n\n", b"event: x\n\n", b"\n\n"):
        with pytest.raises(Malformed):
            read_events(body)
    for body in (b"[]", b"{", b'{"a": NaN}'):
        with pytest.raises(Malformed):
            read_json(body)


def test_refusals_must_help() -> None:
    assert "Retry-After" in " ".join(error_problems(429, {}, b"{}"))
    assert "error object" in " ".join(error_problems(400, {}, b'{"detail": "x"}'))
    assert "not JSON" in " ".join(error_problems(400, {}, b"<html>"))


def test_only_the_certain_beginning_of_an_answer_is_compared() -> None:
    def token(text: str, lead: float) -> dict[str, Any]:
        top = [{"logprob": -0.1}, {"logprob": -0.1 - lead}]
        return {"bytes": list(text.encode()), "top_logprobs": top}

    content = [token("Par", 3.0), token("is", 2.0), token("!", 0.1), token(" So", 5.0)]
    assert certain_beginning({"choices": [{"logprobs": {"content": content}}]}) == "Paris"


def test_metrics_are_added_up_by_name() -> None:
    values = read_metrics('# HELP a x\na{m="1"} 2\na{m="2"} 3.5\n\nb 1e3\n')
    assert values == {"a": 5.5, "b": 1000.0}
    with pytest.raises(Malformed):
        read_metrics("a b c\n")


def test_memory_that_stays_is_told_from_memory_that_grows() -> None:
    def verdict(mib_per_minute: float, minutes: int = 10) -> bool:
        samples = [
            (2.0 * i, (300 + mib_per_minute * i / 30) * MIB) for i in range(30 * minutes + 1)
        ]
        return judge_rss(samples, 60.0 * minutes).has_grown

    assert not verdict(0)
    assert not verdict(2)
    assert verdict(6)
    assert verdict(40, minutes=3)


def test_requests_say_how_long_they_are() -> None:
    request = encode_request("POST", "/x", {"a": 1}, {"X-Request-Id": "r"})
    head, _, body = request.partition(b"\r\n\r\n")
    assert json.loads(body) == {"a": 1}
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"X-Request-Id: r" in head
    assert b"Content-Length" not in encode_request("GET", "/x")


def test_a_character_that_the_token_limit_cut_in_half_is_no_part_of_the_text() -> None:
    globe, begun = "🌏".encode(), "🌪".encode()[:2]
    tokens = [{"bytes": list(globe)}, {"bytes": list(begun)}]
    assert token_text(tokens) == "🌏"
    assert token_text([{"bytes": [0xFF]}, *tokens]) == "\ufffd🌏"
