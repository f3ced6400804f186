"""Gemma 3 270M, a base model: no chat template, a sliding window, another vocabulary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llama_cpp
import pytest

from ferrum_local.llm.model import LlamaModel
from tests.conftest import GEMMA3
from tests.contract.live import CHAT, COMPLETIONS, stream_events, wait_idle
from tests.contract.raw import post

N_WINDOW = 512  # tokens that Gemma's local layers look back
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
FRANCE: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of France?"}]


def chat_text(server: Any, *, stream: bool = False, **fields: Any) -> tuple[str, str]:
    """Text and finish_reason."""
    body = {"messages": FRANCE, **GREEDY, **fields, "stream": stream}
    reply = post(server.url, CHAT, body)
    assert reply.status == 200, reply.body
    choices = [e["choices"][0] for e in (reply.events[:-1] if stream else [reply.json])]
    parts = [c["delta" if stream else "message"].get("content") or "" for c in choices]
    return "".join(parts), choices[-1]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_15_without_a_template_chatml_answers_and_its_marks_stay_inside(
    gemma_server: Any, stream: bool
) -> None:
    for fields in ({}, {"temperature": 1, "seed": 5}, {"max_tokens": 48}):
        text, end = chat_text(gemma_server, stream=stream, **fields)
        assert text.strip()
        assert "<|im_" not in text
        assert end in ("stop", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_str_11_own_stops_work_beside_those_of_the_fallback(
    gemma_server: Any, stream: bool
) -> None:
    whole, _ = chat_text(gemma_server, stream=stream)
    own = whole[3:6]
    cut, end = chat_text(gemma_server, stream=stream, stop=[own])
    assert (cut, end) == (whole[: whole.index(own)], "stop")
    # The end of a turn is a text to this model, so it shows a stop at its mark, and only there.
    turn = [*FRANCE, {"role": "assistant", "content": "Paris."}] * 4
    text, end = chat_text(
        gemma_server, stream=stream, messages=[*turn, *FRANCE], stop=["\x01never"], max_tokens=24
    )
    assert "<|im_" not in text
    assert end == "stop"


def test_chat_13_14_any_order_of_roles_is_answered_and_nothing_is_left_out(
    gemma_server: Any,
) -> None:
    system = {"role": "system", "content": "Be brief."}
    said = {"role": "assistant", "content": "Hello."}
    more = {"role": "user", "content": "And of Italy?"}
    for messages in (
        [system, *FRANCE], [*FRANCE, more], [said, *FRANCE], [*FRANCE, said, system],
        [*FRANCE, said], [more, system, said, *FRANCE],
    ):  # fmt: skip
        body = {"messages": messages}
        prompt = post(gemma_server.url, "/apply-template", body).json["prompt"]
        places = [prompt.index(m["content"]) for m in messages]
        assert places == sorted(places)
        assert all(prompt.count(m["content"]) == 1 for m in messages)
        text = {"content": prompt, "add_special": True}
        tokens = post(gemma_server.url, "/tokenize", text).json["tokens"]
        reply = post(gemma_server.url, CHAT, {**body, **GREEDY, "max_tokens": 2})
        assert reply.status == 200, reply.body
        assert reply.json["usage"]["prompt_tokens"] == len(tokens)


def test_completions_and_usage_by_gemmas_own_tokenizer(gemma_server: Any) -> None:
    vocabulary = LlamaModel(str(GEMMA3), gpu_layers=0)
    prompt = "The capital of France is 🦙 naïve 漢字"
    expected = vocabulary.tokenize(prompt, add_special=True, parse_special=True)
    vocabulary.close()
    client = gemma_server.client()
    answer = client.completions.create(
        model="default", prompt=prompt, **GREEDY, extra_body={"ignore_eos": True}
    )
    assert answer.usage.prompt_tokens == len(expected)
    assert answer.usage.completion_tokens == 16
    parts = client.completions.create(
        model="default", prompt=prompt, **GREEDY, stream=True, extra_body={"ignore_eos": True}
    )
    assert "".join(p.choices[0].text for p in parts) == answer.choices[0].text


def test_the_text_is_the_one_that_llama_cpp_itself_writes(gemma_server: Any) -> None:
    prompt = "The capital of France is"
    alone = llama_cpp.Llama(str(GEMMA3), n_ctx=256, verbose=False)
    expected = alone.create_completion(prompt, temperature=0, max_tokens=8)["choices"][0]["text"]
    alone.close()
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8}
    assert post(gemma_server.url, COMPLETIONS, body).json["choices"][0]["text"] == expected


def test_chat_18_a_prompt_beyond_the_window_is_taken_from_the_cache(gemma_server: Any) -> None:
    notes = " ".join(f"Note {i}: the value of item {i} is {i * 37 % 100}." for i in range(38))
    body = {"prompt": f"{notes} The value of", **GREEDY}
    cold, warm = (post(gemma_server.url, COMPLETIONS, body).json for _ in range(2))
    n_prompt = cold["usage"]["prompt_tokens"]
    assert N_WINDOW < n_prompt < 1000
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    assert warm["choices"][0]["text"] == cold["choices"][0]["text"]
    # Another ending, cut back into what the window has passed already.
    other = {**body, "prompt": f"{notes[:-200]} Note"}
    branch = post(gemma_server.url, COMPLETIONS, other).json
    assert branch["usage"]["prompt_tokens_details"]["cached_tokens"] > N_WINDOW / 2
    assert branch["choices"][0]["text"]


def test_str_07_two_at_once_are_answered_each_with_its_own(gemma_server: Any) -> None:
    def ask(animal: str) -> str:
        prompt = f"My pet is a {animal}. I love my {animal}. " * 4 + "My pet is a"
        events = stream_events(gemma_server, COMPLETIONS, {"prompt": prompt, **GREEDY})
        return "".join(c["text"] for e in events for c in e["choices"])

    with ThreadPoolExecutor(2) as pool:
        tiger, whale = pool.map(ask, ("tiger", "whale"))
    assert "tiger" in tiger
    assert "whale" not in tiger
    assert "whale" in whale
    assert "tiger" not in whale
    assert wait_idle(gemma_server).running == 0
