"""``/v1/chat/completions`` with a real model, judged by the official client and on the wire."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import openai
import pytest

from ferrum_local.errors import GenerationFailed
from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.state import state
from ferrum_local.types import FinishReason
from tests.contract.raw import Reply, post
from tests.fakes import HELLO, ScriptedEngine, chunk, serving, wait_until

PATH = "/v1/chat/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "Say hello in one short sentence."}]
GREEDY = {"temperature": 0, "max_tokens": 24}


def ask(server: Any, **fields: Any) -> Any:
    request = {"model": "default", "messages": HI, **GREEDY, **fields}
    return server.client().chat.completions.create(**request)


def ask_raw(server: Any, **fields: Any) -> Reply:
    return post(server.url, PATH, {"messages": HI, **GREEDY, **fields})


def context_length(server: Any) -> int:
    model = server.client().models.list().data[0]
    return int(model.model_extra["context_length"])


def words(n: int) -> str:
    """``n`` tokens for most tokenizers, or nearly."""
    return " dog" * n


def test_chat_01_without_max_tokens_the_answer_ends_by_itself_or_with_the_context(
    server: Any,
) -> None:
    answer = ask(
        server,
        messages=[{"role": "user", "content": "Count from 1 to 60 in words."}],
        max_tokens=None,
    )
    assert answer.usage.completion_tokens > 16
    if answer.choices[0].finish_reason == "length":
        assert answer.usage.total_tokens >= context_length(server) - 1
    else:
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("value", [None, -1, 999_999])
def test_chat_02_no_limit_in_its_forms(server: Any, value: int | None) -> None:
    reply = ask_raw(server, max_tokens=value, stop=[" ", "\n", "."])
    assert reply.status == 200
    assert reply.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("value", [0, "10", 1.5, True, -2])
def test_chat_02_other_limits_are_a_400(server: Any, value: object) -> None:
    reply = ask_raw(server, max_tokens=value)
    assert reply.status == 400
    assert reply.error["param"] == "max_tokens"


def test_chat_03_max_completion_tokens_limits(server: Any) -> None:
    answer = ask(
        server, max_tokens=openai.omit, max_completion_tokens=5, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_chat_05_an_over_long_prompt_is_refused_not_cut(server: Any) -> None:
    text = f"The code word is OSPREY.{words(context_length(server))} What is the code word?"
    for stream in (False, True):
        reply = ask_raw(server, messages=[{"role": "user", "content": text}], stream=stream)
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert str(context_length(server)) in reply.error["message"]


def test_chat_06_a_prompt_that_leaves_one_token_or_none(server: Any) -> None:
    n_ctx = context_length(server)

    def reply_to(n_words: int) -> Reply:
        messages = [{"role": "user", "content": words(n_words)}]
        return ask_raw(server, messages=messages, max_tokens=1024, ignore_eos=True)

    base = ask(server, messages=[{"role": "user", "content": words(50)}], max_tokens=1)
    n_around = base.usage.prompt_tokens - 50
    fits = reply_to(n_ctx - 1 - n_around)
    assert fits.status == 200, fits.body
    assert fits.json["usage"]["prompt_tokens"] == n_ctx - 1
    assert fits.json["usage"]["completion_tokens"] == 1
    assert fits.json["choices"][0]["finish_reason"] == "length"
    full = reply_to(n_ctx - n_around)
    assert full.status == 400
    assert full.error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_chat_07_tool_calls_in_the_history(server: Any, content: dict[str, None]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [
        *HI,
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    assert ask_raw(server, messages=history, max_tokens=4).status == 200


def test_chat_09_parts_are_one_text(server: Any) -> None:
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]
    joined = ask(server, messages=[{"role": "user", "content": "Say\nhello."}])
    split = ask(server, messages=[{"role": "user", "content": parts}])
    assert split.usage.prompt_tokens == joined.usage.prompt_tokens
    assert split.choices[0].message.content == joined.choices[0].message.content


def test_chat_10_developer_is_system(server: Any) -> None:
    answers = [
        ask(server, messages=[{"role": role, "content": "You are a pirate."}, *HI])
        for role in ("system", "developer")
    ]
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"content": "x"}]}, "messages[1].role"),
        ({"messages": []}, "messages"),
        ({}, "messages"),
    ],
)
def test_chat_11_bad_messages_are_named(server: Any, body: dict[str, Any], param: str) -> None:
    reply = post(server.url, PATH, body)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "messages",
    [
        [*HI, {"role": "assistant", "content": "ok"}, {"role": "system", "content": "Be brief."}],
        [*HI, *HI],
        [{"role": "assistant", "content": "Welcome!"}, *HI],
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, *HI],
    ],
    ids=["system-last", "user-user", "assistant-first", "system-system"],
)
def test_chat_13_14_odd_orders_are_answered(server: Any, messages: list[dict[str, Any]]) -> None:
    assert ask_raw(server, messages=messages, max_tokens=4).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_chat_19_logprobs(server: Any, stream: bool) -> None:
    if stream:
        entries, text = [], ""
        for part in ask(server, logprobs=True, top_logprobs=3, stream=True):
            if part.choices[0].logprobs:
                entries += part.choices[0].logprobs.content
            text += part.choices[0].delta.content or ""
    else:
        choice = ask(server, logprobs=True, top_logprobs=3).choices[0]
        assert choice.logprobs.refusal is None
        entries, text = choice.logprobs.content, choice.message.content
    assert entries
    assert b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "ignore").startswith(text)
    for entry in entries:
        assert entry.token == bytes(entry.bytes).decode("utf-8", "replace")
        assert entry.logprob <= 0
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        # Greedy: the chosen token is the likeliest.
        assert entry.logprob == pytest.approx(values[0], abs=1e-4)


def test_chat_19_without_top_logprobs_the_inner_lists_are_empty(server: Any) -> None:
    choice = ask(server, logprobs=True).choices[0]
    assert choice.logprobs.content
    assert all(entry.top_logprobs == [] for entry in choice.logprobs.content)
    assert ask(server).choices[0].logprobs is None


@pytest.mark.parametrize("name", ["gpt-4o", "no-such-model"])
def test_chat_21_an_unknown_model_is_a_404_that_lists_the_known(server: Any, name: str) -> None:
    known = server.client().models.list().data[0].id
    with pytest.raises(openai.NotFoundError) as caught:
        ask(server, model=name)
    assert caught.value.code == "model_not_found"
    assert known in caught.value.message


def test_chat_21_default_and_no_model_are_the_loaded_one(server: Any) -> None:
    known = server.client().models.list().data[0].id
    assert ask(server, max_tokens=1).model == known
    assert ask_raw(server, max_tokens=1).json["model"] == known
    assert ask_raw(server, max_tokens=1, model="").json["model"] == known


def test_chat_22_all_typed_fields_are_there(server: Any) -> None:
    body = ask_raw(server).json
    assert body["id"].startswith("chatcmpl-")
    assert len(body["id"]) >= len("chatcmpl-") + 24
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["system_fingerprint"].startswith("fp_")
    (choice,) = body["choices"]
    assert set(choice) == {"index", "message", "finish_reason", "logprobs"}
    assert set(choice["message"]) == {"role", "content", "refusal"}
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert set(usage["prompt_tokens_details"]) == {"cached_tokens"}
    assert set(usage["completion_tokens_details"]) == {"reasoning_tokens"}
    assert body["timings"]["predicted_n"] > 0
    # The client's own model of the reply, without leniency.
    openai.types.chat.ChatCompletion.model_validate(body, strict=True)


def test_chat_22_streams_parse_and_equal_the_unstreamed_answer(server: Any) -> None:
    parts = list(ask(server, stream=True))
    assert len({(p.id, p.created, p.model, p.system_fingerprint) for p in parts}) == 1
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    whole = ask(server)
    assert text == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert parts[-1].model_extra["timings"]["predicted_n"] == whole.usage.completion_tokens


def test_chat_22_the_clients_stream_helper_accumulates(server: Any) -> None:
    with server.client().chat.completions.stream(
        model="default", messages=HI, **GREEDY, stream_options={"include_usage": True}
    ) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ask(server).choices[0].message.content
    assert final.usage.completion_tokens > 0


def test_chat_25_two_choices(server: Any) -> None:
    answer = ask(server, n=2, temperature=1, seed=7)
    assert [c.index for c in answer.choices] == [0, 1]
    assert all(c.message.content for c in answer.choices)
    one = ask(server, temperature=1, seed=7)
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.usage.completion_tokens > one.usage.completion_tokens


def test_chat_25_two_choices_streamed(server: Any) -> None:
    texts, ends = {0: "", 1: ""}, {}
    for part in ask(server, n=2, temperature=1, seed=7, stream=True):
        (choice,) = part.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    whole = ask(server, n=2, temperature=1, seed=7)
    assert ends == {c.index: c.finish_reason for c in whole.choices}
    assert texts == {c.index: c.message.content for c in whole.choices}


@pytest.mark.parametrize("stream", [False, True])
def test_str_10_a_stop_string_over_several_tokens(server: Any, stream: bool) -> None:
    text = ask(server).choices[0].message.content
    assert len(text) > 12
    stop = text[5:12]  # begins and ends inside words
    assert text_and_end(server, stop=[stop], stream=stream) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_str_10_a_near_miss_is_released_in_full(server: Any, stream: bool) -> None:
    whole = text_and_end(server, stream=stream)
    near_misses = [whole[0][5:12] + "\x01", whole[0][-4:] + "\x01"]
    assert text_and_end(server, stop=near_misses, stream=stream) == whole


@pytest.mark.parametrize("stream", [False, True])
def test_str_11_own_stops_beside_the_templates(server: Any, stream: bool) -> None:
    # Long enough to reach the end of the turn, which the template's own token marks.
    whole, end = text_and_end(server, max_tokens=200, stream=stream)
    assert end == "stop"
    assert text_and_end(server, max_tokens=200, stop=["\x01never"], stream=stream) == (whole, end)
    own = whole[3:6]
    assert text_and_end(server, max_tokens=200, stop=own, stream=stream) == (
        whole[: whole.index(own)],
        "stop",
    )


def text_and_end(server: Any, *, stream: bool, **fields: Any) -> tuple[str, str]:
    if not stream:
        (choice,) = ask(server, **fields).choices
        return choice.message.content, choice.finish_reason
    parts = list(ask(server, stream=True, **fields))
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    return text, parts[-1].choices[0].finish_reason


def test_str_13_usage_only_when_asked_for(server: Any) -> None:
    events = ask_raw(server, stream=True).events
    assert events.pop() == "[DONE]"
    assert all("usage" not in e for e in events)
    assert "timings" in events[-1]


def test_str_13_with_include_usage(server: Any) -> None:
    reply = ask_raw(server, stream=True, stream_options={"include_usage": True})
    *events, last, done = reply.events
    assert done == "[DONE]"
    assert all(e["usage"] is None and len(e["choices"]) == 1 for e in events)
    assert last["choices"] == []
    assert last["usage"] == ask_raw(server).json["usage"] | {
        "prompt_tokens_details": last["usage"]["prompt_tokens_details"]
    }


def test_a_stream_has_role_content_and_finish_in_this_order(server: Any) -> None:
    reply = ask_raw(server, stream=True)
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    first, *middle, last = [e["choices"][0] for e in reply.events[:-1]]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert all(set(c["delta"]) == {"content"} and c["delta"]["content"] for c in middle)
    assert all(c["finish_reason"] is None for c in (first, *middle))
    assert last["delta"] == {}
    assert last["finish_reason"] in ("stop", "length")


def test_a_trailing_assistant_message_is_continued(server: Any) -> None:
    begun = {"role": "assistant", "content": "Hello, my name is"}
    text = ask(server, messages=[*HI, begun]).choices[0].message.content
    assert text
    assert not text.startswith("Hello, my name is")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b"null", 400), (b'{"messages": [],}', 400), (b"\xff", 400)],
)
def test_json_09_bodies_that_are_no_request(server: Any, body: bytes, status: int) -> None:
    reply = post(server.url, PATH, body)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"


def test_json_09_another_media_type_is_a_415(server: Any) -> None:
    body = json.dumps({"messages": HI}).encode()
    assert post(server.url, PATH, body, {"Content-Type": "text/plain"}).status == 415


def test_unknown_fields_are_named(server: Any) -> None:
    reply = ask_raw(server, max_token=5)
    assert (reply.status, reply.error["param"]) == (400, "max_token")
    assert "max_tokens" in reply.error["message"]


@pytest.mark.parametrize(
    ("header", "value"),
    [("X-Ferrum-Priority", "urgent"), ("X-Ferrum-Timeout", "soon"), ("X-Ferrum-Timeout", "-1")],
)
def test_bad_headers_are_named(server: Any, header: str, value: str) -> None:
    reply = post(server.url, PATH, {"messages": HI}, {header: value})
    assert (reply.status, reply.error["param"]) == (400, header)


# What a real engine does only when it breaks: the scripted one does it on demand.


def test_str_14_a_fault_after_the_first_chunks_is_one_event_and_frees_all() -> None:
    engine = ScriptedEngine([*[chunk("a")] * 5, GenerationFailed("The batch failed.")])
    app = create_app(engine, HttpConfig(max_streams=1))
    with serving(app) as address:
        *events, last = post(address.url, PATH, {"messages": HI, "stream": True}).events
        assert [e["choices"][0]["delta"].get("content") for e in events[1:]] == ["a"] * 5
        assert last == {
            "error": {
                "message": "The batch failed.",
                "type": "server_error",
                "param": None,
                "code": "generation_failed",
            }
        }
        wait_until(lambda: state(app).gate.open == 0)
        engine.script = HELLO
        reply = post(address.url, PATH, {"messages": HI})
        assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "Hello")


def test_str_14_the_client_raises_the_event() -> None:
    engine = ScriptedEngine([chunk("a"), GenerationFailed("The batch failed.")])
    with serving(create_app(engine)) as address:
        client: Any = openai.OpenAI(base_url=f"{address.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="The batch failed"):
            list(client.chat.completions.create(model="tiny", messages=HI, stream=True))


def test_a_refusal_by_the_engine_is_a_status_not_an_event() -> None:
    engine = ScriptedEngine(state="loading")
    with serving(create_app(engine)) as address:
        reply = post(address.url, PATH, {"messages": HI, "stream": True})
        assert (reply.status, reply.error["code"]) == (503, "loading")
        assert "retry-after" in reply.headers


@pytest.mark.parametrize("keep_alive_s", [0.05, 600], ids=["by-writing", "by-looking"])
def test_a_client_that_leaves_a_silent_stream_has_its_work_cancelled(keep_alive_s: float) -> None:
    engine = ScriptedEngine([threading.Event()])
    with serving(create_app(engine, HttpConfig(keep_alive_s=keep_alive_s))) as address:
        client: Any = openai.OpenAI(base_url=f"{address.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
        next(iter(stream))  # the role: from here on nothing comes
        stream.close()
        wait_until(engine.streams[0].closed.is_set)


def test_silence_is_filled_with_comments() -> None:
    go_on = threading.Event()
    engine = ScriptedEngine([go_on, *HELLO])
    with serving(create_app(engine, HttpConfig(keep_alive_s=0.01))) as address:
        threading.Timer(0.8, go_on.set).start()
        reply = post(address.url, PATH, {"messages": HI, "stream": True})
    assert b"\n\n: keep-alive\n\n" in reply.body
    assert (
        "".join(e["choices"][0]["delta"].get("content", "") for e in reply.events[:-1]) == "Hello"
    )


def test_headers_and_fields_reach_the_engine() -> None:
    engine = ScriptedEngine()
    config = HttpConfig(request_timeout_s=60, any_model_name=True)
    with serving(create_app(engine, config)) as address:
        for timeout, deadline_s in (("5", 5), ("500", 60)):
            reply = post(
                address.url,
                PATH,
                {"model": "gpt-4o", "messages": HI, "user": "ada", "metadata": {"a": "b"}},
                {"X-Ferrum-Priority": "background", "X-Ferrum-Timeout": timeout},
            )
            assert reply.json["model"] == "tiny"  # the reply names the real one
            request = engine.requests[-1]
            assert request.id == reply.json["id"]
            assert (request.priority.name, request.deadline_s) == ("BACKGROUND", deadline_s)
            assert request.session_id == "ada"
            assert request.metadata == {"a": "b", "x_request_id": reply.headers["x-request-id"]}
            assert request.client_id == "127.0.0.1"


def test_a_stream_without_an_end_is_an_error_not_a_done() -> None:
    with serving(create_app(ScriptedEngine([chunk("a")]))) as address:
        events = post(address.url, PATH, {"messages": HI, "stream": True}).events
    assert "[DONE]" not in events
    assert events[-1]["error"]["code"] == "generation_failed"


@pytest.mark.parametrize("stream", [False, True])
def test_the_access_line_has_the_counts(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ferrum_local.access")
    with serving(create_app(ScriptedEngine())) as address:
        post(address.url, PATH, {"messages": HI, "stream": stream})
        wait_until(lambda: bool(caplog.records))
    (line,) = caplog.messages
    assert "model=tiny prompt=3 cached=1 generated=3 queue_ms=1.0 ttft_ms=50.0 tok/s=300.0" in line


def test_cancelled_by_id_is_an_error_event() -> None:
    script = [chunk("a"), chunk("", finish=FinishReason.CANCELLED)]
    with serving(create_app(ScriptedEngine(script))) as address:
        events = post(address.url, PATH, {"messages": HI, "stream": True}).events
    assert events[-1]["error"]["code"] == "cancelled"
