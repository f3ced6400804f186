"""Bodies become typed requests, or a 400 that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.schemas import ChatCompletionRequest, CompletionRequest
from ferrum_local.http.openai.validation import parse_request

HI = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> ChatCompletionRequest:
    return parse_request({"messages": [HI], **fields}, ChatCompletionRequest)


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"messages": [HI, HI, {"role": "user", "content": 3}]},
            "messages[2].content: expected string, null or list of parts, got int",
        ),
        ({"messages": []}, "messages: expected non-empty list of messages, got an empty list"),
        ({"messages": "hi"}, "messages: expected non-empty list of messages, got string"),
        ({"messages": ["hi"]}, "messages[0]: expected message, got string"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role: required, but missing"),
        (
            {"messages": [{"role": "banana"}]},
            "messages[0].role: expected one of assistant, developer, function, system, tool, "
            'user, got "banana"',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]},
            "messages[0].content[0].txt: unknown field; did you mean text?",
        ),
        ({"temperature": 2.5}, "temperature: expected number from 0 to 2, got 2.5"),
        ({"temperature": "1"}, "temperature: expected number from 0 to 2 or null, got string"),
        ({"top_p": 0}, "top_p: expected number above 0 to 1, got 0"),
        ({"n": 9}, "n: expected integer from 1 to 8, got 9"),
        ({"n": True}, "n: expected integer from 1 to 8 or null, got bool"),
        ({"seed": 2**63}, "seed: expected integer of 64 bits, got 9223372036854775808"),
        ({"stop": ["a", 1]}, "stop[1]: expected string, got int"),
        (
            {"logit_bias": {"5": 1, "6": 101}},
            "logit_bias: expected number from -100 to 100, got 101",
        ),
        ({"metadata": {"a": 1}}, "metadata: expected string, got int"),
        ({"mirostat": 3}, "mirostat: expected one of 0, 1, 2, got 3"),
        (
            {"stream_options": {"include_usge": True}},
            "stream_options.include_usge: unknown field; did you mean include_usage?",
        ),
        ({"max_token": 5}, "max_token: unknown field; did you mean max_tokens?"),
        ({"cache_prompt": True}, "cache_prompt: unknown field"),
    ],
)
def test_an_error_tells_where_what_was_expected_and_what_came(
    fields: dict[str, Any], message: str
) -> None:
    error = refused(**fields)
    assert error.message == message
    assert error.param == message.split(":")[0]


def test_chat_11_missing_messages_are_named() -> None:
    with pytest.raises(ApiError) as caught:
        parse_request({}, ChatCompletionRequest)
    assert (caught.value.param, caught.value.code) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize("body", [[], None, 3, "x", True])
def test_json_09_a_body_that_is_no_object_is_a_400(body: object) -> None:
    with pytest.raises(ApiError, match="expected an object") as caught:
        parse_request(body, ChatCompletionRequest)
    assert caught.value.status == 400


@pytest.mark.parametrize("value", ["10", 1.5, True, -2, []])
def test_chat_02_max_tokens_of_a_wrong_type_is_a_400(value: object) -> None:
    assert refused(max_tokens=value).param == "max_tokens"
    assert refused(max_completion_tokens=value).param == "max_completion_tokens"


def test_null_is_the_default_everywhere_but_for_messages() -> None:
    for name in ChatCompletionRequest.__struct_fields__:
        if name != "messages":
            assert getattr(chat(**{name: None}), name) is None
    assert refused(messages=None).param == "messages"


def test_fields_that_openai_has_and_that_change_nothing_are_accepted() -> None:
    chat(
        user="u",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        parallel_tool_calls=True,
    )


def test_what_a_value_is_stays_short_and_a_wrong_type_shows_no_content() -> None:
    assert len(refused(messages=[{"role": "x" * 10_000}]).message) < 250
    assert "secret" not in refused(temperature="secret").message
    assert len(refused(**{"y" * 10_000: 1}).message) < 250


@pytest.mark.parametrize("prompt", ["", "a", ["a", "b"], [1, 2], [[1, 2], [3]]])
def test_the_four_forms_of_a_prompt(prompt: object) -> None:
    assert parse_request({"prompt": prompt}, CompletionRequest).prompt == prompt


@pytest.mark.parametrize("prompt", [None, [], {}, 3, [1.5], [[1, "a"]], [{}]])
def test_other_prompts_are_a_400(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request({"prompt": prompt}, CompletionRequest)
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
CHAT_FIELDS = st.sampled_from(ChatCompletionRequest.__struct_fields__)
COMPLETION_FIELDS = st.sampled_from(CompletionRequest.__struct_fields__)


@given(st.dictionaries(CHAT_FIELDS | st.text(max_size=8), JSON, max_size=4))
def test_json_09_any_chat_body_is_accepted_or_a_400(fields: dict[str, Any]) -> None:
    assert_accepted_or_400({"messages": [HI], **fields}, ChatCompletionRequest)


@given(st.dictionaries(COMPLETION_FIELDS | st.text(max_size=8), JSON, max_size=4))
def test_json_09_any_completion_body_is_accepted_or_a_400(fields: dict[str, Any]) -> None:
    assert_accepted_or_400({"prompt": "hi", **fields}, CompletionRequest)


def assert_accepted_or_400(body: dict[str, Any], request_type: Any) -> None:
    try:
        parse_request(body, request_type)
    except ApiError as error:
        assert error.status == 400
        assert error.param
