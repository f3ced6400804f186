"""Chat cases that need a server of a special size or two starts; most are in test_chat.py."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrum_local.llm.model import LlamaModel
from tests.conftest import SMOLLM2, RunningServer, serve
from tests.contract.conftest import SMALL_CTX
from tests.contract.live import CHAT, COMPLETIONS
from tests.contract.raw import Reply, post

HI: list[dict[str, Any]] = [{"role": "user", "content": "Say hello in one short sentence."}]
_stories = itertools.count()


def body_for(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """``text`` as a user's message or as a prompt."""
    if path == CHAT:
        return {"messages": [{"role": "user", "content": text}], **fields}
    return {"prompt": text, **fields}


def text_of(reply: Reply) -> str:
    """Of an answer or of a stream."""
    assert reply.status == 200, reply.body
    bodies = reply.events[:-1] if reply.body.startswith(b"data:") else [reply.json]
    texts = []
    for choice in itertools.chain.from_iterable(b["choices"] for b in bodies):
        message = choice.get("message") or choice.get("delta") or {}
        texts.append(choice.get("text") or message.get("content") or "")
    return "".join(texts)


def fill(path: str, url: str, n_free: int) -> dict[str, Any]:
    """A request whose prompt leaves ``n_free`` tokens of the small context."""
    probe = post(url, path, body_for(path, " dog" * 50, max_tokens=1)).json["usage"]
    n_around = probe["prompt_tokens"] - 50
    return body_for(path, " dog" * (SMALL_CTX - n_free - n_around))


# Limits


def test_chat_01_without_max_tokens_an_answer_may_fill_the_context(small_server: Any) -> None:
    usage = post(small_server.url, CHAT, {"messages": HI, "ignore_eos": True}).json["usage"]
    assert usage["total_tokens"] == SMALL_CTX
    reply = post(small_server.url, CHAT, {"messages": HI, "temperature": 0})
    if reply.json["choices"][0]["finish_reason"] == "length":
        assert reply.json["usage"]["total_tokens"] == SMALL_CTX
    else:
        assert reply.json["choices"][0]["finish_reason"] == "stop"
        assert reply.json["usage"]["total_tokens"] < SMALL_CTX


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_chat_02_both_names_of_the_limit_take_the_same_values(
    small_server: Any, field: str
) -> None:
    def ask(value: object) -> Reply:
        return post(small_server.url, CHAT, {"messages": HI, field: value, "stop": ["!", ".", " "]})

    for value in (None, -1, 999_999, 10**30):
        assert ask(value).status == 200
    for value in (0, -2, "10", 1.5, True, [], {}, 1e30):
        reply = ask(value)
        assert (reply.status, reply.error["param"]) == (400, field)


def test_chat_03_the_newer_name_wins(small_server: Any) -> None:
    body = {"messages": HI, "max_tokens": 9, "max_completion_tokens": 5, "ignore_eos": True}
    reply = post(small_server.url, CHAT, body).json
    assert reply["usage"]["completion_tokens"] == 5
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_chat_05_an_over_long_prompt_is_refused_with_both_counts(
    small_server: Any, path: str, stream: bool
) -> None:
    vocabulary = LlamaModel(str(SMOLLM2), gpu_layers=0)
    text = f"The code word is OSPREY.{' dog' * 300} What is the code word?"
    n_text = len(vocabulary.tokenize(text, add_special=True, parse_special=True))
    vocabulary.close()
    reply = post(small_server.url, path, body_for(path, text, stream=stream, max_tokens=5))
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert reply.error["type"] == "invalid_request_error"
    assert f"{SMALL_CTX} tokens" in reply.error["message"]
    if path == COMPLETIONS:
        assert f"{n_text} tokens" in reply.error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_chat_06_room_for_one_token_gives_one_and_none_is_a_400(
    small_server: Any, path: str, stream: bool
) -> None:
    url = small_server.url
    more = {"max_tokens": 1024, "ignore_eos": True, "stream": stream}
    if stream:
        more["stream_options"] = {"include_usage": True}
    for n_free in (2, 1):
        reply = post(url, path, {**fill(path, url, n_free), **more})
        assert reply.status == 200, reply.body
        last = reply.events[-2] if stream else reply.json
        end = reply.events[-3] if stream else reply.json
        assert last["usage"]["completion_tokens"] == n_free
        assert last["usage"]["total_tokens"] == SMALL_CTX
        assert end["choices"][0]["finish_reason"] == "length"
    for n_free in (0, -1):
        reply = post(url, path, {**fill(path, url, n_free), **more})
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
    assert post(url, path, {**fill(path, url, 100), "max_tokens": 1}).status == 200


def test_chat_06_a_prompt_that_fills_the_context_can_still_be_scored(small_server: Any) -> None:
    body = {**fill(COMPLETIONS, small_server.url, 0), "max_tokens": 0, "echo": True, "logprobs": 0}
    reply = post(small_server.url, COMPLETIONS, body)
    assert reply.status == 200, reply.body
    assert len(reply.json["choices"][0]["logprobs"]["tokens"]) == SMALL_CTX


# Sameness


@pytest.fixture(scope="module")
def two_starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Any, str]]]:
    """Two servers just started and the first answer of each, asked for without a seed.

    The second one's model lies where paths go wrong.
    """
    folder = tmp_path_factory.mktemp("Željko Ž") / "模型 dir"
    folder.mkdir()
    odd = folder / 'it\'s my "model".gguf'
    odd.symlink_to(SMOLLM2)
    starts = [serve_small(SMOLLM2), serve_small(odd)]
    servers = [next(start) for start in starts]
    body = {"messages": HI, "temperature": 1.5, "max_tokens": 24, "ignore_eos": True}
    yield [(server, text_of(post(server.url, CHAT, body))) for server in servers]
    for start in starts:
        with pytest.raises(StopIteration):
            next(start)


def serve_small(model: Path) -> Iterator[RunningServer]:
    return serve("--model", str(model), "--ctx-size", "200", "--slots", "1")


def test_chat_17_without_a_seed_two_starts_begin_differently(
    two_starts: list[tuple[Any, str]],
) -> None:
    (_, first), (_, second) = two_starts
    assert first != second


def test_chat_17_one_seed_gives_one_text_on_any_start(two_starts: list[tuple[Any, str]]) -> None:
    body = {"messages": HI, "temperature": 1, "seed": 42, "max_tokens": 16}
    texts = [text_of(post(server.url, CHAT, body)) for server, _ in two_starts]
    assert texts[0] == texts[1]


def test_cli_03_a_model_under_an_odd_path_is_served(two_starts: list[tuple[Any, str]]) -> None:
    server, text = two_starts[1]
    assert text
    assert "model" in server.model
    assert server.client().models.retrieve(server.model).id == server.model


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_chat_17_the_same_seed_gives_the_same_text_streamed_or_not(server: Any, path: str) -> None:
    body = body_for(path, "Tell me a story about a seed.", temperature=1, max_tokens=16)
    body["ignore_eos"] = True  # an empty text is like another
    first = text_of(post(server.url, path, {**body, "seed": 42}))
    for stream in (False, True):
        assert text_of(post(server.url, path, {**body, "seed": 42, "stream": stream})) == first
    assert text_of(post(server.url, path, {**body, "seed": 43})) != first
    assert text_of(post(server.url, path, {**body, "seed": -42})) != first
    assert len({text_of(post(server.url, path, body)) for _ in range(3)}) > 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 42}])
def test_chat_18_the_first_answer_is_the_cached_one(
    server: Any, path: str, sampling: dict[str, Any]
) -> None:
    for subject in ("rivers", "bread"):
        text = f"Story {next(_stories)}: write about {subject}. " + "Be kind. " * 12
        body = body_for(path, text, max_tokens=24, **sampling)
        cold, *warm = (
            post(server.url, path, {**body, "stream": stream}) for stream in (False, True, False)
        )
        cached = warm[-1].json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == warm[-1].json["usage"]["prompt_tokens"] - 1
        assert cached > cold.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert [text_of(reply) for reply in warm] == [text_of(cold)] * 2
