"""``/v1/completions`` with a real model, judged by the official client and on the wire."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from ferrum_local.errors import GenerationFailed, InvalidRequest, QueueFull
from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.state import state
from ferrum_local.types import InferenceRequest
from tests.contract.raw import Reply, post
from tests.fakes import HELLO, ScriptedEngine, ScriptedStream, chunk, serving, wait_until

PATH = "/v1/completions"
PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_tokens": 12}


def ask(server: Any, **fields: Any) -> Any:
    request = {"model": "default", "prompt": PROMPT, **GREEDY, **fields}
    return server.client().completions.create(**request)


def ask_raw(server: Any, **fields: Any) -> Reply:
    return post(server.url, PATH, {"prompt": PROMPT, **GREEDY, **fields})


def test_chat_01_the_default_limit_is_16(server: Any) -> None:
    answer = ask(server, max_tokens=openai.omit, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_chat_02_limits(server: Any) -> None:
    assert ask_raw(server, max_tokens=-1, stop=" ").status == 200
    assert ask_raw(server, max_tokens=None).status == 200
    for value in (0, "10", 1.5, -2):
        reply = ask_raw(server, max_tokens=value)
        assert (reply.status, reply.error["param"]) == (400, "max_tokens")


def test_chat_22_all_typed_fields_are_there(server: Any) -> None:
    body = ask_raw(server).json
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["system_fingerprint"].startswith("fp_")
    assert set(body["choices"][0]) == {"index", "text", "finish_reason", "logprobs"}
    openai.types.Completion.model_validate(body, strict=True)


def test_streams_equal_the_unstreamed_answer(server: Any) -> None:
    parts = list(ask(server, stream=True))
    assert len({(p.id, p.created, p.model) for p in parts}) == 1
    whole = ask(server)
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_several_prompts_are_answered_in_order(server: Any) -> None:
    prompts = ["Once upon a time", "The capital of France is", "1, 2, 3,"]
    answer = ask(server, prompt=prompts)
    alone = [ask(server, prompt=p) for p in prompts]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.text for c in answer.choices] == [a.choices[0].text for a in alone]
    assert answer.usage.prompt_tokens == sum(a.usage.prompt_tokens for a in alone)


def test_several_prompts_and_choices_streamed(server: Any) -> None:
    texts = dict.fromkeys(range(4), "")
    for part in ask(server, prompt=["One", "Two"], n=2, seed=3, temperature=1, stream=True):
        texts[part.choices[0].index] += part.choices[0].text
    whole = ask(server, prompt=["One", "Two"], n=2, seed=3, temperature=1)
    assert [c.index for c in whole.choices] == [0, 1, 2, 3]
    assert texts == {c.index: c.text for c in whole.choices}


def test_token_ids_and_lists_of_them(server: Any) -> None:
    ids = [97, 98, 99]  # any ids will do, as long as the vocabulary has them
    one = ask(server, prompt=ids)
    assert one.usage.prompt_tokens == 3
    two = ask(server, prompt=[ids, ids])
    assert [c.text for c in two.choices] == [one.choices[0].text] * 2
    echoed = ask(server, prompt=ids, echo=True)
    assert echoed.choices[0].text.endswith(one.choices[0].text)
    assert len(echoed.choices[0].text) > len(one.choices[0].text)


@pytest.mark.parametrize("prompt", [None, [], [[]], ["a", 1], [1, "a"], [-1], [2**31], [10**9]])
def test_prompts_that_cannot_be(server: Any, prompt: object) -> None:
    reply = ask_raw(server, prompt=prompt)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


def test_a_missing_prompt_is_named(server: Any) -> None:
    reply = post(server.url, PATH, {"max_tokens": 1})
    assert (reply.status, reply.error["param"]) == (400, "prompt")


@pytest.mark.parametrize("stream", [False, True])
def test_echo(server: Any, stream: bool) -> None:
    whole = ask(server).choices[0].text
    answer = ask(server, echo=True, stream=stream)
    text = "".join(p.choices[0].text for p in answer) if stream else answer.choices[0].text
    assert text == PROMPT + whole


def test_logprobs_have_the_legacy_shape(server: Any) -> None:
    choice = ask(server, logprobs=2).choices[0]
    logprobs = choice.logprobs
    n = len(logprobs.tokens)
    assert n == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert n == len(logprobs.text_offset) > 0
    for token, value, top, offset in zip(
        logprobs.tokens,
        logprobs.token_logprobs,
        logprobs.top_logprobs,
        logprobs.text_offset,
        strict=True,
    ):
        assert choice.text[offset:].startswith(token)
        assert 2 <= len(top) <= 3
        assert top[token] == pytest.approx(value, abs=1e-4)


def test_logprobs_are_the_same_in_a_stream(server: Any) -> None:
    whole = ask(server, logprobs=2, echo=True).choices[0].logprobs
    tokens, offsets, values = [], [], []
    for part in ask(server, logprobs=2, echo=True, stream=True):
        logprobs = part.choices[0].logprobs
        if logprobs:
            tokens += logprobs.tokens
            offsets += logprobs.text_offset
            values += logprobs.token_logprobs
    assert (tokens, offsets) == (whole.tokens, whole.text_offset)
    assert values[0] is None
    assert values[1:] == pytest.approx(whole.token_logprobs[1:], abs=0.05)


def test_max_tokens_0_with_echo_scores_the_prompt(server: Any) -> None:
    answer = ask(server, max_tokens=0, echo=True, logprobs=1)
    choice = answer.choices[0]
    assert choice.text == PROMPT
    assert answer.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.finish_reason == "length"


def test_suffix_needs_a_model_that_can_fill_in(server: Any) -> None:
    reply = ask_raw(server, suffix=" the end.")
    assert reply.status == 400
    assert reply.error["code"] == "unsupported_parameter"


def test_best_of_gives_the_best_and_counts_all(server: Any) -> None:
    fields = {"temperature": 1, "seed": 5, "logprobs": 0}
    best = ask(server, best_of=3, n=1, **fields)
    candidates = ask(server, n=3, **fields)
    assert len(best.choices) == 1
    assert best.choices[0].index == 0
    assert best.usage.completion_tokens == candidates.usage.completion_tokens
    assert best.choices[0].text in [c.text for c in candidates.choices]


def test_str_10_stop_strings(server: Any) -> None:
    text = ask(server).choices[0].text
    stop = text[4:9]
    answer = ask(server, stop=stop)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_str_13_usage_in_streams(server: Any) -> None:
    events = ask_raw(server, stream=True).events
    assert events.pop() == "[DONE]"
    assert all("usage" not in e for e in events)
    *events, last, done = ask_raw(
        server, stream=True, stream_options={"include_usage": True}
    ).events
    assert done == "[DONE]"
    assert all(e["usage"] is None and e["choices"] for e in events)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == ask_raw(server).json["usage"]["completion_tokens"]


def test_str_13_stream_options_without_a_stream_are_a_400(server: Any) -> None:
    reply = ask_raw(server, stream_options={"include_usage": True})
    assert (reply.status, reply.error["param"]) == (400, "stream_options")


# What a real engine does only when it breaks or is full: the scripted one does it on demand.


class Refusing(ScriptedEngine):
    """Refuses each request whose prompt is an exception's name."""

    def __init__(self, **refusals: Exception) -> None:
        super().__init__()
        self.refusals = refusals

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        if isinstance(request.prompt, str) and request.prompt in self.refusals:
            raise self.refusals[request.prompt]
        return super().infer_stream(request)


@pytest.mark.parametrize("stream", [False, True])
def test_one_refused_prompt_cancels_the_others(stream: bool) -> None:
    engine = Refusing(bad=InvalidRequest("No such token.", param="prompt"))
    with serving(create_app(engine, HttpConfig(max_streams=1))) as address:
        for _ in range(2):  # a place in the gate that leaked would refuse the second
            reply = post(address.url, PATH, {"prompt": ["a", "bad", "c"], "stream": stream})
            assert (reply.status, reply.error["message"]) == (400, "prompt[1]: No such token.")
    assert [s.closed.is_set() for s in engine.streams] == [True, True]


class TwoPlaces(ScriptedEngine):
    """Takes two requests at a time."""

    def infer_stream(self, request: InferenceRequest) -> ScriptedStream:
        if len(self._running) == 2:
            raise QueueFull("The queue is full.", retry_after_s=1)
        return super().infer_stream(request)


@pytest.mark.parametrize("stream", [False, True])
def test_more_prompts_than_the_queue_takes_wait_for_each_other(stream: bool) -> None:
    prompts = ["a", "b", "c", "d", "e"]
    with serving(create_app(TwoPlaces())) as address:
        reply = post(address.url, PATH, {"prompt": prompts, "echo": True, "stream": stream})
    texts = dict.fromkeys(range(5), "")
    assert reply.status == 200, reply.body
    for event in reply.events[:-1] if stream else [reply.json]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {i: f"{p}Hello" for i, p in enumerate(prompts)}


def test_too_many_prompts_are_a_400() -> None:
    with serving(create_app(ScriptedEngine())) as address:
        assert post(address.url, PATH, {"prompt": ["a"] * 128}).status == 200
        reply = post(address.url, PATH, {"prompt": ["a"] * 129})
    assert (reply.status, reply.error["param"]) == (400, "prompt")


def test_str_14_a_fault_in_one_of_two_ends_both() -> None:
    engine = ScriptedEngine([chunk("a"), GenerationFailed("The batch failed.")])
    app = create_app(engine, HttpConfig(max_streams=1))
    with serving(app) as address:
        events = post(address.url, PATH, {"prompt": ["x", "y"], "stream": True}).events
        assert events[-1]["error"]["code"] == "generation_failed"
        wait_until(lambda: state(app).gate.open == 0)
        assert all(stream.closed.is_set() for stream in engine.streams)
        engine.script = HELLO
        assert post(address.url, PATH, {"prompt": "x"}).status == 200
