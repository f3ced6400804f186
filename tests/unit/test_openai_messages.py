"""Messages as clients send them become what a chat template takes."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.messages import normalise
from ferrum_local.http.openai.schemas import ChatCompletionRequest
from ferrum_local.http.openai.validation import parse_request

HI = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def normalised(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    request = parse_request({"messages": list(messages)}, ChatCompletionRequest)
    return list(normalise(request.messages))


def refused(*messages: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        normalised(*messages)
    assert caught.value.status == 400
    return caught.value


def test_chat_09_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalised({"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb"}]


def test_chat_10_developer_is_system() -> None:
    assert normalised({"role": "developer", "content": "be brief"}, HI)[0] == {
        "role": "system",
        "content": "be brief",
    }


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_chat_07_tool_calls_without_content_and_their_answer(content: dict[str, None]) -> None:
    assert normalised(
        HI,
        {"role": "assistant", "tool_calls": [CALL], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    )[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]


def test_the_older_function_messages_become_tool_messages() -> None:
    call = {"name": "f", "arguments": "{}"}
    assistant, tool = normalised(
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "42"},
    )
    assert assistant["tool_calls"] == [{"type": "function", "id": "call_f", "function": call}]
    assert tool == {"role": "tool", "name": "f", "tool_call_id": "call_f", "content": "42"}


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert normalised(HI, answer)[1] == {"role": "assistant", "content": "hello"}


def test_null_content_is_empty_text_where_no_call_stands_beside_it() -> None:
    nothing = {"role": "user", "content": None}
    assert [m["content"] for m in normalised(nothing, {"role": "assistant"})] == ["", ""]


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool", "function"])
def test_only_an_answer_may_leave_its_content_out(role: str) -> None:
    error = refused(HI, {"role": role, "tool_call_id": "call_1", "name": "f"})
    assert (error.param, error.code) == ("messages[1].content", "missing_required_parameter")


def test_name_reasoning_and_refusals_are_kept() -> None:
    assert normalised({**HI, "name": "Ada"})[0]["name"] == "Ada"
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    assert normalised(thought)[0]["reasoning_content"] == "2+2"
    part = {"type": "refusal", "refusal": "no"}
    assert normalised({"role": "assistant", "content": [part]})[0]["content"] == "no"
    assert normalised({"role": "assistant", "refusal": "no"})[0]["content"] == "no"


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_id": "x"}}, "file"),
    ],
)
def test_other_input_than_text_is_refused_by_name(part: dict[str, Any], kind: str) -> None:
    error = refused(HI, {"role": "user", "content": [{"type": "text", "text": "see"}, part]})
    assert error.message == f"messages[1].content[1]: {kind} input not supported by this model"
    assert (error.param, error.code) == ("messages[1].content[1]", "unsupported_parameter")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "tool", "content": "42"}, "messages[0].tool_call_id"),
        ({"role": "function", "content": "42"}, "messages[0].name"),
        ({**HI, "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({**HI, "tool_call_id": "x"}, "messages[0].tool_call_id"),
        ({**HI, "audio": {"id": "x"}}, "messages[0].audio"),
    ],
)
def test_fields_a_role_needs_or_cannot_have(message: dict[str, Any], param: str) -> None:
    assert refused(message).param == param
