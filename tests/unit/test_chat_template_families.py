"""Chat templates of the families that people run, each in its own syntax and manners."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ferrum_local.errors import InvalidRequest
from ferrum_local.llm.chat_template import ChatTemplate
from ferrum_local.llm.gguf_header import read_header
from tests.unit.chat_templates import chat_template, sample


def say(*turns: str) -> list[dict[str, Any]]:
    """Messages from ``"role: content"``."""
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in turns]


def call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's <warm> & ☀",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}

TOOL_HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Zürich?"},
    {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"city": "Zürich"}')]},
    {"role": "tool", "tool_call_id": "call_1", "content": "18 °C"},
]


def smollm_source() -> str:
    path = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not fetched")
    source = read_header(path).chat_template
    assert source is not None
    return source


# --- ChatML -----------------------------------------------------------------------------


def test_smollm_renders_with_its_own_template() -> None:
    template = chat_template(smollm_source())
    assert not template.fallback
    assert template.stop_strings == ()
    assert template.render(say("system: Be brief.", "user: Hi")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_smollm_adds_its_default_system_message() -> None:
    prompt = chat_template(smollm_source()).render(say("user: Hi"))
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_chat_07_smollm_takes_tool_history_with_null_and_absent_content() -> None:
    template = chat_template(smollm_source())
    absent = [dict(message) for message in TOOL_HISTORY]
    del absent[1]["content"]
    prompt = template.render(TOOL_HISTORY)
    assert template.render(absent) == prompt
    assert not template.supports_tool_calls
    assert (
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
        "<|im_end|>\n" in prompt
    )
    assert "18 °C" in prompt
    assert "None" not in prompt


def test_trailing_assistant_message_is_continued() -> None:
    template = chat_template(smollm_source())
    prompt = template.render(say("user: Count", "assistant: one, two,"))
    assert prompt == template.render(say("user: Count")) + "one, two,"


def test_conversation_of_one_assistant_message_is_continued() -> None:
    assert chat_template(smollm_source()).render(say("assistant: Once")) == (
        "<|im_start|>assistant\nOnce"
    )
    assert (
        chat_template(sample("gemma"))
        .render(say("assistant: Once"))
        .endswith("<start_of_turn>model\nOnce")
    )


def test_trailing_assistant_message_with_tool_calls_is_not_continued() -> None:
    prompt = chat_template(sample("qwen")).render(TOOL_HISTORY[:2])
    assert prompt.endswith("</tool_call><|im_end|>\n<|im_start|>assistant\n")


def test_chat_10_developer_is_a_system_message() -> None:
    template = chat_template(smollm_source())
    assert template.render(say("developer: Be brief.", "user: Hi")) == template.render(
        say("system: Be brief.", "user: Hi")
    )


def test_chat_09_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = chat_template(sample("phi")).render([{"role": "user", "content": parts}])
    assert prompt == "<|user|>\na\nb<|end|>\n<|assistant|>\n"


def test_reasoning_of_a_message_to_be_continued_is_refused_not_dropped() -> None:
    last = {"role": "assistant", "content": "So", "reasoning_content": "hm"}
    with pytest.raises(InvalidRequest) as caught:
        chat_template(None).render([*say("user: Hi"), last])
    assert caught.value.param == "messages[1].reasoning_content"


# --- Llama 2 ----------------------------------------------------------------------------


def test_llama_2_renders_as_written() -> None:
    template = chat_template(sample("llama_2"))
    prompt = template.render(say("system: Be brief.", "user: Hi", "assistant: Hello", "user: Bye"))
    assert prompt == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]"
    )
    assert template.supports_system
    assert not template.supports_tool_role


def test_chat_13_llama_2_merges_a_later_system_message_to_the_front() -> None:
    prompt = chat_template(sample("llama_2")).render(
        say("system: One.", "user: Hi", "assistant: Hello", "system: Two.", "user: Bye")
    )
    assert prompt.startswith("<s>[INST] <<SYS>>\nOne.\n\nTwo.\n<</SYS>>\n\nHi [/INST]")


def test_chat_13_system_message_after_the_first_turn_moves_to_the_front() -> None:
    prompt = chat_template(sample("llama_2")).render(
        say("user: Hi", "assistant: Hello", "system: Two.", "user: Bye")
    )
    assert prompt.startswith("<s>[INST] <<SYS>>\nTwo.\n<</SYS>>\n\nHi [/INST]")


def test_chat_14_llama_2_joins_two_user_messages() -> None:
    prompt = chat_template(sample("llama_2")).render(say("user: Hi", "user: Are you there?"))
    assert prompt == "<s>[INST] Hi\n\nAre you there? [/INST]"


def test_llama_2_takes_a_conversation_that_the_assistant_begins() -> None:
    prompt = chat_template(sample("llama_2")).render(say("assistant: Welcome!", "user: Hi"))
    assert prompt == "<s>[INST]  [/INST] Welcome! </s><s>[INST] Hi [/INST]"


def test_llama_2_gets_tool_history_as_text() -> None:
    prompt = chat_template(sample("llama_2")).render(TOOL_HISTORY)
    assert prompt == (
        "<s>[INST] Weather in Zürich? [/INST] "
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call> </s>'
        "<s>[INST] <tool_response>\nResult of weather:\n18 °C\n</tool_response> [/INST]"
    )


# --- Gemma ------------------------------------------------------------------------------


def test_gemma_gets_the_system_text_in_the_first_user_message() -> None:
    template = chat_template(sample("gemma"))
    assert not template.supports_system
    assert template.render(say("system: Be brief.", "user: Hi")) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_gemma_takes_a_system_message_alone() -> None:
    assert "<start_of_turn>user\nBe brief.<end_of_turn>" in chat_template(sample("gemma")).render(
        say("system: Be brief.")
    )


def test_chat_14_gemma_system_and_neighbours_together() -> None:
    prompt = chat_template(sample("gemma")).render(
        say("system: S.", "user: A", "user: B", "assistant: C", "assistant: D", "user: E")
    )
    assert prompt == (
        "<s><start_of_turn>user\nS.\n\nA\n\nB<end_of_turn>\n"
        "<start_of_turn>model\nC\n\nD<end_of_turn>\n"
        "<start_of_turn>user\nE<end_of_turn>\n<start_of_turn>model\n"
    )


def test_gemma_assistant_first_with_system() -> None:
    prompt = chat_template(sample("gemma")).render(
        say("system: S.", "assistant: Welcome!", "user: Hi")
    )
    assert prompt.startswith(
        "<s><start_of_turn>user\nS.<end_of_turn>\n<start_of_turn>model\nWelcome!<end_of_turn>\n"
    )


# --- Mistral ----------------------------------------------------------------------------


def test_tool_09_mistral_gets_ids_of_nine_characters() -> None:
    template = chat_template(sample("mistral"))
    prompt = template.render(TOOL_HISTORY)
    head, _, tail = prompt.partition('"id": "')
    short = tail[:9]
    assert short.isalnum()
    assert head == "<s>[INST]Weather in Zürich?[/INST][TOOL_CALLS][" + (
        '{"name": "weather", "arguments": {"city": "Zürich"}, '
    )
    result = '[TOOL_RESULTS]{"content": 18 °C, "call_id": "' + short + '"}[/TOOL_RESULTS]'
    assert tail[9:] == '"}]</s>' + result


def test_tool_09_ids_that_fit_stay_and_the_same_id_maps_the_same_way() -> None:
    template = chat_template(sample("mistral"))
    fitting = [dict(message) for message in TOOL_HISTORY]
    fitting[1]["tool_calls"] = [call("weather", "{}", "abcDEF123")]
    fitting[2]["tool_call_id"] = "abcDEF123"
    assert template.render(fitting).count("abcDEF123") == 2
    assert template.render(TOOL_HISTORY) == chat_template(sample("mistral")).render(TOOL_HISTORY)


def test_tool_09_a_tool_message_without_an_id_answers_the_open_call() -> None:
    history = [*TOOL_HISTORY[:2], {"role": "function", "name": "weather", "content": "18 °C"}]
    template = chat_template(sample("mistral"))
    assert template.render(history) == template.render(TOOL_HISTORY)


def test_tool_09_results_without_ids_answer_the_open_calls_in_turn() -> None:
    calls = [call("weather", '{"city": "Rome"}', "romeCall1"), call("weather", "{}", "noneCall2")]
    history = [
        *say("user: Weather?"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        *say("function: hot", "function: where?"),
    ]
    prompt = chat_template(sample("mistral")).render(history)
    assert '[TOOL_RESULTS]{"content": hot, "call_id": "romeCall1"}' in prompt
    assert '[TOOL_RESULTS]{"content": where?, "call_id": "noneCall2"}' in prompt


def test_mistral_does_not_lose_the_system_text_before_a_tool_result() -> None:
    # As it stands this template shows the system text only beside a final user message.
    prompt = chat_template(sample("mistral")).render([*say("system: Be brief."), *TOOL_HISTORY])
    assert prompt.startswith("<s>[INST]Be brief.\n\nWeather in Zürich?[/INST][TOOL_CALLS]")


def test_tool_11_mistral_shows_every_tool_description() -> None:
    template = chat_template(sample("mistral"))
    other = json.loads(json.dumps(WEATHER_TOOL).replace("warm", "cold"))
    prompt = template.render(say("user: Hi"), tools=[WEATHER_TOOL, other])
    assert template.uses_tools
    assert "It's <warm> & ☀" in prompt
    assert "It's <cold> & ☀" in prompt


# --- Llama 3 ----------------------------------------------------------------------------


def test_llama_3_renders_tools_date_and_calls() -> None:
    template = chat_template(sample("llama_3"))
    prompt = template.render(
        [*say("system: Be brief. "), *TOOL_HISTORY],
        tools=[WEATHER_TOOL],
        now=lambda: datetime(2025, 3, 9),
    )
    assert template.uses_tools
    assert prompt == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 09 Mar 2025\n\n"
        + json.dumps(WEATHER_TOOL, ensure_ascii=False, indent=4)
        + "\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWeather in Zürich?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "weather", "parameters": {"city": "Zürich"}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"18 °C"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_llama_3_gets_parallel_calls_as_text_because_it_takes_one_at_a_time() -> None:
    history = [
        TOOL_HISTORY[0],
        {
            "role": "assistant",
            "tool_calls": [call("weather", '{"city": "Rome"}', "a"), call("clock", "{}", "b")],
        },
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "tool", "tool_call_id": "a", "content": "hot"},
    ]
    prompt = chat_template(sample("llama_3")).render(history)
    assert '{"name": "weather", "arguments": {"city": "Rome"}}' in prompt
    assert '{"name": "clock", "arguments": {}}' in prompt
    assert "Result of clock:\nnoon" in prompt
    assert "Result of weather:\nhot" in prompt


# --- Qwen, Phi, DeepSeek, parts ---------------------------------------------------------


def test_qwen_takes_enable_thinking() -> None:
    template = chat_template(sample("qwen"))
    messages = say("user: Hi")
    thinking = template.render(messages, template_kwargs={"enable_thinking": True})
    assert thinking == template.render(messages)
    assert template.render(messages, template_kwargs={"enable_thinking": False}) == (
        thinking + "<think>\n\n</think>\n\n"
    )


def test_qwen_renders_tools_and_calls_natively() -> None:
    template = chat_template(sample("qwen"))
    assert template.uses_tools and template.supports_tool_calls and template.supports_tool_role
    prompt = template.render([*say("system: S."), *TOOL_HISTORY], tools=[WEATHER_TOOL])
    assert prompt == (
        "<|im_start|>system\nS.\n\n<tools>\n"
        + json.dumps(WEATHER_TOOL, ensure_ascii=False)
        + "\n</tools><|im_end|>\n"
        "<|im_start|>user\nWeather in Zürich?<|im_end|>\n"
        "<|im_start|>assistant\n\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n18 °C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_qwen_leaves_out_old_thoughts_as_it_was_made_to() -> None:
    prompt = chat_template(sample("qwen")).render(
        say("user: Hi", "assistant: <think>hm</think>Hello", "user: Bye")
    )
    assert "<|im_start|>assistant\nHello<|im_end|>" in prompt
    assert "hm" not in prompt


def test_phi_gets_what_it_leaves_out_in_another_place() -> None:
    template = chat_template(sample("phi"))
    assert not template.supports_tool_role
    assert template.render(TOOL_HISTORY) == (
        "<|user|>\nWeather in Zürich?<|end|>\n"
        '<|assistant|>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n'
        "</tool_call><|end|>\n"
        "<|user|>\n<tool_response>\nResult of weather:\n18 °C\n</tool_response><|end|>\n"
        "<|assistant|>\n"
    )


def test_deepseek_gets_arguments_as_the_text_that_it_appends() -> None:
    history = [dict(message) for message in TOOL_HISTORY]
    history[1]["tool_calls"] = [call("weather", '{"city":"Zürich"}')]  # no space: kept as it came
    assert chat_template(sample("deepseek")).render([*say("system: S."), *history]) == (
        "<s>S.<｜User｜>Weather in Zürich?<｜Assistant｜><｜tool▁call▁begin｜>weather"
        '<｜tool▁sep｜>{"city":"Zürich"}<｜tool▁call▁end｜></s>'
        "<｜tool▁output▁begin｜>18 °C<｜tool▁output▁end｜><｜Assistant｜>"
    )


def test_template_that_reads_only_parts_gets_parts() -> None:
    template = chat_template(sample("parts_only"))
    assert template.content_parts
    assert template.render(say("system: S.", "user: Hi", "assistant: Sure")) == (
        "<system>S.</system><user>Hi</user><assistant>Sure"
    )


def test_system_text_that_a_template_passes_over_goes_to_the_user() -> None:
    template = chat_template(sample("user_and_assistant_only"))
    assert not template.supports_system
    prompt = template.render(say("system: S.", "user: Hi", "assistant: Yes", "user: Bye"))
    assert prompt == "Q: S.\n\nHi\nA: Yes\nQ: Bye\nA:"


# --- CHAT-15: no template, broken templates ----------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        None,
        "",
        "  \n",
        "{% for message in messages %}{{ message.content }}",
        "{{ messages | no_such_filter }}",
        "{% for m in messages %}{{ m.content.no_such_method() }}{% endfor %}",
        "{% for m in messages %}{{ m.content if loop.first else m.content.foo() }}{% endfor %}",
        "{% include 'other.jinja' %}",
        "the same text for everybody",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_chat_15_missing_or_unusable_template_falls_back_to_chatml(
    source: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        template = chat_template(source)
    assert template.fallback
    assert len(caplog.records) == 1
    assert "ChatML" in caplog.text
    assert template.description.startswith("ChatML (")
    assert template.stop_strings == ("<|im_end|>",)
    assert template.render(say("system: S.", "user: Hi")) == (
        "<|im_start|>system\nS.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chat_15_a_method_missing_only_for_tools_spares_other_requests() -> None:
    template = chat_template(
        "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls.foo() }}{% endif %}"
        "{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    )
    assert not template.fallback
    assert not template.supports_tool_calls
    assert '"name": "weather"' in template.render(TOOL_HISTORY)


def test_a_template_for_single_turns_is_kept() -> None:
    template = chat_template(
        "{% if messages | length > 1 %}{{ raise_exception('One message only') }}{% endif %}"
        "Translate: {{ messages[0].content }}"
    )
    assert not template.fallback
    with pytest.raises(InvalidRequest, match="One message only") as caught:
        template.render(say("user: a", "assistant: b", "user: c"))
    assert caught.value.param == "messages"


def test_values_come_in_the_form_that_a_template_can_print() -> None:
    template = chat_template(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}|"
        "{% endfor %}"
    )
    assert template.render(TOOL_HISTORY) == (
        '[user] Weather in Zürich?|[assistant] weather {"city": "Zürich"}|[tool] 18 °C|'
    )


# --- refusals ---------------------------------------------------------------------------


def test_refusal_in_every_arrangement_carries_the_templates_own_words() -> None:
    template = chat_template(
        "{% for m in messages %}{% if 'forbidden' in m.content %}"
        "{{ raise_exception('No such talk, please') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(InvalidRequest, match="No such talk, please"):
        template.render(say("user: forbidden"))


def test_refusal_speaks_of_the_conversation_as_it_was_sent() -> None:
    template = chat_template(
        "{% for m in messages %}{% if m.content != 'hello' and not m.content.startswith('zq') %}"
        "{{ raise_exception(messages | map(attribute='role') | join(' then ')) }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(InvalidRequest, match="user then user then system"):
        template.render(say("user: a", "user: b", "system: c"))


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (say("user: a", "banana: b"), "messages[1].role"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
    ],
)
def test_chat_11_bad_messages_are_named(messages: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_template(None).render(messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "add_generation_prompt", "raise_exception"]
)
def test_template_kwargs_cannot_replace_what_the_server_sets(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_template(sample("qwen")).render(say("user: Hi"), template_kwargs={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_special_tokens_and_undefined_variables() -> None:
    template = ChatTemplate(
        "{{ pad_token }}{{ never_heard_of }}{% for m in messages %}{{ m.content }}{% endfor %}",
        bos_token="",
        eos_token="",
        special_tokens={"pad_token": "<pad>"},
    )
    assert template.render(say("user: Hi")) == "<pad>Hi"


def test_arguments_that_are_not_json_stay_as_they_are() -> None:
    history = [dict(message) for message in TOOL_HISTORY]
    history[1]["tool_calls"] = [call("weather", '{"city": ')]
    assert '"arguments": {"city": }' in chat_template(sample("qwen")).render(history)
