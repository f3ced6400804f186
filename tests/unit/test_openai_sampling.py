"""Request fields become SamplingParams; rules between fields hold."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.sampling_fields import chat_sampling, completion_sampling
from ferrum_local.http.openai.schemas import ChatCompletionRequest, CompletionRequest
from ferrum_local.http.openai.validation import parse_request
from ferrum_local.types import SamplingParams


def chat(**fields: Any) -> SamplingParams:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return chat_sampling(parse_request(body, ChatCompletionRequest))


def completion(**fields: Any) -> SamplingParams:
    return completion_sampling(parse_request({"prompt": "hi", **fields}, CompletionRequest))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    return caught.value


def test_nothing_sent_is_the_engines_defaults() -> None:
    assert chat() == SamplingParams()
    assert completion() == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("sent", "meant"), [(None, None), (-1, None), (1, 1), (999_999, 999_999), (10**30, 2**31 - 1)]
)
def test_chat_02_what_max_tokens_means(sent: int | None, meant: int | None) -> None:
    assert chat(max_tokens=sent).max_tokens == meant


def test_chat_02_zero_is_a_400_on_chat_and_needs_echo_on_completions() -> None:
    assert refused(max_tokens=0).param == "max_tokens"
    assert refused(max_completion_tokens=0).param == "max_completion_tokens"
    with pytest.raises(ApiError, match="echo"):
        completion(max_tokens=0)
    scored = completion(max_tokens=0, echo=True)
    assert (scored.max_tokens, scored.prompt_logprobs) == (0, 0)


def test_chat_03_the_newer_name_of_max_tokens_wins() -> None:
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=50).max_tokens == 5
    assert chat(max_completion_tokens=None, max_tokens=50).max_tokens == 50


def test_minus_one_is_unlimited_on_completions_too() -> None:
    assert completion(max_tokens=-1).max_tokens is None


def test_every_sampling_field_arrives() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "typical_p": 0.8,
        "top_n_sigma": 1.5,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 128,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "repeat_penalty": 1.1,
        "repeat_last_n": 32,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
        "seed": 42,
        "n": 2,
        "ignore_eos": True,
        "min_tokens": 3,
    }
    expected = SamplingParams(
        **fields, stop=("a", "b"), logit_bias={5: -100.0}, dry_sequence_breakers=("\n",)
    )
    sent = {"stop": ["a", "", "b"], "logit_bias": {"5": -100}, "dry_sequence_breakers": ["\n"]}
    assert chat(**fields, **sent) == expected


@pytest.mark.parametrize(
    ("sent", "meant"),
    [(None, ()), ("", ()), ("a", ("a",)), ([], ()), (["", "a"], ("a",)), (["a"] * 16, ("a",) * 16)],
)
def test_str_11_forms_of_stop(sent: object, meant: tuple[str, ...]) -> None:
    assert chat(stop=sent).stop == meant


def test_values_that_mean_off_or_default() -> None:
    assert chat(top_k=-1).top_k == chat(top_k=0).top_k == 0
    assert chat(seed=-1).seed is None
    assert chat(seed=0).seed == 0
    assert chat(logit_bias={}).logit_bias == {}
    assert chat(repetition_penalty=1.2).repeat_penalty == 1.2
    assert chat(repetition_penalty=1.2, repeat_penalty=1.2).repeat_penalty == 1.2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"repetition_penalty": 1.2, "repeat_penalty": 1.1}, "repetition_penalty"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
    ],
)
def test_values_that_do_not_go_together(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)


def test_chat_19_logprobs_and_their_alternatives() -> None:
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).logprobs == 3
    assert chat(logprobs=False).logprobs is None


@pytest.mark.parametrize(
    "fields",
    [
        {"web_search_options": {}},
        {"moderation": {"model": "x"}},
        {"verbosity": "low"},
    ],
)
def test_fields_of_openai_that_are_not_supported_are_named(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, next(iter(fields)))
    assert error.code == "unsupported_parameter"


def test_their_values_without_effect_pass() -> None:
    assert (
        chat(
            response_format={"type": "text"},
            modalities=["text"],
            verbosity="medium",
        )
        == SamplingParams()
    )


def test_best_of_asks_for_candidates_with_their_logprobs() -> None:
    asked = completion(n=2, best_of=3)
    assert (asked.n, asked.logprobs) == (3, 0)
    assert completion(n=2, best_of=2).logprobs is None
    for fields in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}):
        with pytest.raises(ApiError) as caught:
            completion(**fields)
        assert caught.value.param == "best_of"


def test_echo_scores_the_prompt_only_when_asked_or_needed() -> None:
    assert completion(echo=True).prompt_logprobs is None
    assert completion(echo=True, logprobs=2).prompt_logprobs == 2
    assert completion(logprobs=2).prompt_logprobs is None
    ids = parse_request({"prompt": [1, 2], "echo": True}, CompletionRequest)
    assert completion_sampling(ids, echo_needs_text=True).prompt_logprobs == 0
    with pytest.raises(ApiError, match="suffix"):
        completion(echo=True, suffix="x")


def test_the_default_of_16_gives_way_to_min_tokens() -> None:
    assert completion(min_tokens=20).max_tokens == 20
