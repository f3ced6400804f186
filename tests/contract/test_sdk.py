"""The official OpenAI client as the judge: every way it has to ask, and what it makes of errors."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.http.config import HttpConfig
from ferrum_local.llm.model import LlamaModel
from ferrum_local.server.http_server import HttpServer
from tests.conftest import SMOLLM2
from tests.contract.live import CHAT, COMPLETIONS, load, stream_events, wait_idle
from tests.contract.raw import post
from tests.fakes import wait_until

ASK: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Say hello in one short sentence."}],
    "temperature": 0,
    "max_tokens": 16,
}
CONTINUE: dict[str, Any] = {
    "model": "default", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12,
}  # fmt: skip
KEY = "sesame"


def content_of(parts: Iterator[Any]) -> str:
    return "".join(p.choices[0].delta.content or "" for p in parts if p.choices)


# Ways to ask


def test_the_stream_helper_tells_its_events_in_order(server: Any) -> None:
    with server.client().chat.completions.stream(
        **ASK, stream_options={"include_usage": True}
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    kinds = [event.type for event in events]
    assert set(kinds) == {"chunk", "content.delta", "content.done"}
    assert kinds[0] == "chunk"
    deltas = [event for event in events if event.type == "content.delta"]
    snapshot = ""
    for event in deltas:
        snapshot += event.delta
        assert event.snapshot == snapshot
    (done,) = [event for event in events if event.type == "content.done"]
    assert done.content == snapshot == final.choices[0].message.content
    assert final.usage.completion_tokens > 0
    assert final.choices[0].finish_reason in ("stop", "length")


def test_the_stream_helper_tells_logprobs(server: Any) -> None:
    with server.client().chat.completions.stream(**ASK, logprobs=True, top_logprobs=2) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"logprobs.content.delta", "logprobs.content.done"} <= kinds
    whole = server.client().chat.completions.create(**ASK, logprobs=True, top_logprobs=2)
    assert [e.token for e in final.choices[0].logprobs.content] == [
        e.token for e in whole.choices[0].logprobs.content
    ]


def test_leaving_the_stream_helper_early_cancels(server: Any) -> None:
    before = wait_idle(server)
    with server.client().chat.completions.stream(
        **{**ASK, "max_tokens": 1900}, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    assert wait_idle(server).cancelled == before.cancelled + 1


def test_the_async_client_asks_and_streams_side_by_side(server: Any) -> None:
    async def ask() -> tuple[list[str], str, Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:

            async def one(word: str) -> str:
                answer = await client.chat.completions.create(
                    **{**ASK, "messages": [{"role": "user", "content": f"Say {word}."}]}
                )
                return answer.choices[0].message.content or ""

            async def streamed() -> str:
                text = ""
                async for part in await client.chat.completions.create(**ASK, stream=True):
                    text += part.choices[0].delta.content or ""
                return text

            *answers, text = await asyncio.gather(
                *(one(word) for word in ("yes", "no", "red")), streamed()
            )
            async with client.chat.completions.stream(**ASK) as stream:
                await stream.until_done()
                final = await stream.get_final_completion()
            return answers, text, final

    answers, text, final = asyncio.run(ask())
    assert all(answers)
    assert text
    assert final.choices[0].message.content == text_alone(server)


def text_alone(server: Any) -> str:
    return str(server.client().chat.completions.create(**ASK).choices[0].message.content)


def test_raw_responses_carry_the_request_id_and_the_time(server: Any) -> None:
    asked_s = time.monotonic()
    raw = server.client().chat.completions.with_raw_response.create(
        **ASK, extra_headers={"X-Request-Id": "mine-42"}
    )
    waited_ms = 1000 * (time.monotonic() - asked_s)
    assert raw.headers["x-request-id"] == raw.request_id == "mine-42"
    assert raw.headers["content-type"] == "application/json"
    answer = raw.parse()
    timings = answer.model_extra["timings"]
    computed_ms = timings["prompt_ms"] + timings["predicted_ms"]
    assert computed_ms > 1
    # It is rounded to whole milliseconds.
    assert computed_ms - 1 <= int(raw.headers["openai-processing-ms"]) <= waited_ms + 1
    assert answer.choices[0].message.content
    assert answer._request_id == "mine-42"
    assert server.client().chat.completions.create(**ASK)._request_id.startswith("req_")


def test_streamed_responses_are_read_line_by_line(server: Any) -> None:
    with server.client().chat.completions.with_streaming_response.create(
        **ASK, stream=True
    ) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith(("data: ", ":")) for line in lines)


def test_n_and_logprobs_together(server: Any) -> None:
    answer = server.client().chat.completions.create(
        **{**ASK, "temperature": 1}, n=2, seed=3, logprobs=True, top_logprobs=1
    )
    assert [c.index for c in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert all(len(e.top_logprobs) == 1 for e in choice.logprobs.content)
        text = b"".join(bytes(e.bytes) for e in choice.logprobs.content).decode("utf-8", "ignore")
        assert text.startswith(choice.message.content)


def test_completions_in_all_forms(server: Any) -> None:
    client = server.client()
    whole = client.completions.create(**CONTINUE)
    streamed = list(client.completions.create(**CONTINUE, stream=True))
    assert "".join(p.choices[0].text for p in streamed) == whole.choices[0].text
    both = client.completions.create(**{**CONTINUE, "prompt": ["Once upon a time", "One, two,"]})
    assert both.choices[0].text == whole.choices[0].text
    assert both.choices[1].text


def test_models_are_listed_and_retrieved(server: Any) -> None:
    client = server.client()
    (listed,) = client.models.list().data
    assert listed.id == server.model
    assert listed.object == "model"
    assert isinstance(listed.owned_by, str)
    assert listed.created == int(SMOLLM2.stat().st_mtime)
    assert listed.model_extra["size_bytes"] > 10**7
    assert client.models.retrieve(listed.id) == listed
    assert client.models.retrieve("smol").id == listed.id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


# What its own models say of the replies


def extras(model: pydantic.BaseModel, path: str = "") -> set[str]:
    """Paths of fields that the client's models do not know, at any depth."""
    found = {f"{path}{name}" for name in model.model_extra or ()}
    for name in type(model).model_fields:
        inner = getattr(model, name)
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, pydantic.BaseModel):
                found |= extras(item, f"{path}{name}.")
    return found


def test_chat_22_answers_validate_strictly_and_add_only_timings(server: Any) -> None:
    chat = post(server.url, CHAT, {**ASK, "n": 2, "logprobs": True, "top_logprobs": 2}).json
    assert extras(ChatCompletion.model_validate(chat, strict=True)) == {"timings"}
    text = post(server.url, COMPLETIONS, {**CONTINUE, "logprobs": 2, "n": 2}).json
    assert extras(Completion.model_validate(text, strict=True)) == {"timings"}


def test_chat_22_every_chunk_validates_strictly_and_adds_only_timings(server: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = post(server.url, CHAT, {**ASK, **options, "logprobs": True, "top_logprobs": 2}).events
    found = [extras(ChatCompletionChunk.model_validate(e, strict=True)) for e in events[:-1]]
    assert set().union(*found[:-1]) == set()
    assert found[-1] == {"timings"}
    # The client has one model for text answers and chunks alike: its finish_reason is not
    # optional there, and the client itself parses without asking.
    events = post(server.url, COMPLETIONS, {**CONTINUE, **options, "logprobs": 2}).events
    for event in events[:-1]:
        for choice in event["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        assert extras(Completion.model_validate(event, strict=True)) <= {"timings"}


# Counts and sameness


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[LlamaModel]:
    model = LlamaModel(str(SMOLLM2), gpu_layers=0)
    yield model
    model.close()


def tokens(vocabulary: LlamaModel, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=True)


@pytest.mark.parametrize(
    "prompt",
    ["The capital of France is", "naïve 🦙 漢字 \n\n\t x", "def f(x):\n    return", "a" * 200],
)
def test_usage_equals_the_tokenizers_counts_on_completions(
    server: Any, vocabulary: LlamaModel, prompt: str
) -> None:
    answer = server.client().completions.create(
        **{**CONTINUE, "prompt": prompt}, extra_body={"ignore_eos": True}
    )
    expected = vocabulary.tokenize(prompt, add_special=True, parse_special=True)
    assert answer.usage.prompt_tokens == len(expected)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == len(expected) + 12


def test_usage_equals_the_tokenizers_counts_on_chat(server: Any, vocabulary: LlamaModel) -> None:
    # SmolLM2's template, written out: ChatML with a system message of its own.
    rendered = (
        "<|im_start|>system\nYou count.<|im_end|>\n<|im_start|>user\nAnd a 🦙?<|im_end|>\n"
        "<|im_start|>assistant\nOne.<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    answer = server.client().chat.completions.create(
        model="default",
        messages=[
            {"role": "system", "content": "You count."},
            {"role": "user", "content": "And a 🦙?"},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "More."},
        ],
        max_tokens=8, temperature=0, logprobs=True, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.usage.prompt_tokens == len(tokens(vocabulary, rendered))
    assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content) == 8


def test_the_next_turn_is_taken_from_the_cache(server: Any) -> None:
    first = {"role": "user", "content": "Tell me something about lighthouses, please. " * 3}
    client = server.client()
    one = client.chat.completions.create(**{**ASK, "messages": [first]})
    again = client.chat.completions.create(**{**ASK, "messages": [first]})
    assert again.usage.prompt_tokens_details.cached_tokens == one.usage.prompt_tokens - 1
    turns = [first, {"role": "assistant", "content": one.choices[0].message.content}]
    two = client.chat.completions.create(
        **{**ASK, "messages": [*turns, {"role": "user", "content": "More!"}]}
    )
    assert two.usage.prompt_tokens_details.cached_tokens >= one.usage.prompt_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 11},
        {"temperature": 1.5, "seed": 12, "top_p": 0.9, "presence_penalty": 1},
        {"temperature": 0, "stop": [",", "."]},
        {"temperature": 0.7, "seed": 13, "extra_body": {"top_k": 40, "repeat_penalty": 1.3}},
        {"temperature": 0, "logit_bias": {"28": -100, "30": -100}},
        {"temperature": 1, "seed": 14, "extra_body": {"mirostat": 2}},
        {"temperature": 1, "seed": 15, "extra_body": {"min_p": 0, "ignore_eos": True}},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_streamed_text_equals_unstreamed_text(server: Any, fields: dict[str, Any]) -> None:
    for question in ("What is rain?", "Say 🦙 and 漢字, then sing."):
        ask = {**ASK, "messages": [{"role": "user", "content": question}], **fields}
        whole = server.client().chat.completions.create(**ask)
        parts = list(
            server.client().chat.completions.create(
                **ask, stream=True, stream_options={"include_usage": True}
            )
        )
        assert content_of(iter(parts)) == whole.choices[0].message.content
        assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert parts[-1].usage.prompt_tokens == whole.usage.prompt_tokens


# Errors, by class


def test_bad_requests_are_bad_request_errors(server: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(**{**ASK, "temperature": 9})
    error = caught.value
    assert (error.status_code, error.param, error.code) == (400, "temperature", None)
    assert error.type == "invalid_request_error"
    assert "temperature" in error.message
    assert error.request_id
    with pytest.raises(openai.BadRequestError) as caught:
        server.client().chat.completions.create(
            **{**ASK, "messages": [{"role": "user", "content": "dog " * 4000}]}, stream=True
        )
    assert caught.value.code == "context_length_exceeded"


def test_unknown_models_and_routes_are_not_found_errors(server: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        server.client().completions.create(**{**CONTINUE, "model": "gpt-4o"})
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "not_found_error"
    with pytest.raises(openai.NotFoundError) as caught:
        server.client().fine_tuning.jobs.list()
    assert caught.value.code == "unknown_route"


def test_a_keyed_server_wants_its_key(engine: LocalEngine) -> None:
    with HttpServer(engine, HttpConfig(api_keys=(KEY,))) as server:
        url = f"{server.url}/v1"
        for headers, code in (
            ({}, "invalid_api_key"),
            ({"Authorization": ""}, "missing_api_key"),
        ):
            client: Any = openai.OpenAI(
                base_url=url, api_key="wrong", max_retries=0, default_headers=headers
            )
            for call in (
                lambda c=client: c.models.list(),
                lambda c=client: c.chat.completions.create(**ASK),
                lambda c=client: c.completions.create(**CONTINUE, stream=True),
            ):
                with pytest.raises(openai.AuthenticationError) as caught:
                    call()
                assert caught.value.code == code
                assert caught.value.type == "authentication_error"
        client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
        assert client.chat.completions.create(**ASK).choices[0].message.content
        assert content_of(client.chat.completions.create(**ASK, stream=True))
        assert client.models.list().data


def test_a_full_queue_is_a_rate_limit_error_that_retries_overcome(small_server: Any) -> None:
    wait_idle(small_server)
    client = small_server.client()
    short = {**ASK, "max_tokens": 2}
    endless = {"prompt": "One", "max_tokens": -1, "ignore_eos": True}
    running = stream_events(small_server, COMPLETIONS, endless)
    next(running)
    waiting = threading.Thread(target=lambda: client.chat.completions.create(**short))
    waiting.start()
    wait_until(lambda: load(small_server).queued == 1, 60)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**short)
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    # The client's own retries honour Retry-After and succeed once there is room.
    patient = small_server.client(max_retries=20)
    answers: list[Any] = []
    retrying = threading.Thread(
        target=lambda: answers.append(patient.chat.completions.create(**short))
    )
    retrying.start()
    running.close()  # type: ignore[attr-defined]
    retrying.join()
    waiting.join()
    assert answers[0].choices[0].finish_reason in ("stop", "length")


def test_a_client_side_timeout_frees_the_server(server: Any) -> None:
    before = wait_idle(server)
    impatient = server.client(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(
            **{**ASK, "max_tokens": 1900}, extra_body={"ignore_eos": True}
        )
    after = wait_idle(server)
    assert after.cancelled == before.cancelled + 1


def test_an_error_event_is_raised_by_the_client_that_streams(engine: LocalEngine) -> None:
    with HttpServer(engine) as server:
        client: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(
            **{**ASK, "max_tokens": 900}, stream=True, extra_body={"ignore_eos": True}
        )
        first = next(iter(stream))
        assert engine.cancel(first.id)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
        assert caught.value.code == "cancelled"
        body = json.dumps(caught.value.body)
        assert "Traceback" not in body
