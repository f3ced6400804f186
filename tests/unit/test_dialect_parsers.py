"""What is a call and what only looks like one; reasoning; what a stream gives when."""

from __future__ import annotations

import pytest

from ferrum_local.llm.dialects import Dialect, detect
from ferrum_local.types import ToolCallDelta
from tests.unit.chat_templates import sample
from tests.unit.dialects import NOW, TOOLS, WEATHER, parser, read

HERMES = detect(sample("qwen"), renders_tools=True)


def call(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --- Calls ----------------------------------------------------------------------------------


def test_tool_02_a_plain_answer_is_content_alone() -> None:
    answer = read(HERMES, "Hello! How are you?\n")
    assert (answer.content, answer.calls) == ("Hello! How are you?\n", [])


def test_tool_03_a_call_streams_its_name_once_and_its_arguments_as_they_grow() -> None:
    parse = parser(HERMES)
    pieces = ['<tool_call>\n{"name": "wea', 'ther", "argu', 'ments": {"ci', 'ty": "Pa', 'ris"}}']
    deltas = [parse.push(piece).tool_calls for piece in pieces]
    assert deltas[:2] == [(), ()]
    (first,) = deltas[2]
    assert (first.index, first.name, first.arguments) == (0, "weather", '{"ci')
    assert first.id is not None
    assert deltas[3] == (ToolCallDelta(index=0, arguments='ty": "Pa'),)
    assert deltas[4] == (ToolCallDelta(index=0, arguments='ris"}'),)
    assert parse.push("\n</tool_call>") == parse.finish() == ("", "", ())
    assert parse.n_tool_calls == 1


def test_tool_10_several_calls_have_their_own_index_and_id() -> None:
    answer = read(HERMES, call('{"city": "Paris"}') + "\n" + call('{"city": "Rome"}'))
    assert answer.parsed_calls == [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})]
    assert len(set(answer.ids)) == 2
    assert answer.content == ""


def test_text_before_and_between_calls_is_content_without_the_space_around_them() -> None:
    answer = read(HERMES, f"I look.\n\n{call('{}', 'now')}\nAnd also:\n{call('{}', 'now')}\n")
    assert answer.content == "I look.And also:"
    assert answer.calls == [("now", "{}"), ("now", "{}")]


def test_json_strings_may_hold_the_closing_mark_and_braces() -> None:
    arguments = '{"city": "</tool_call> } \\" {"}'
    assert read(HERMES, call(arguments)).calls == [("weather", arguments)]


def test_a_raw_line_break_in_a_string_is_escaped() -> None:
    """Models write it often, and it is what they mean."""
    assert read(HERMES, call('{"city": "a\nb\tc"}')).calls == [("weather", '{"city": "a\\nb\\tc"}')]


@pytest.mark.parametrize(
    "text",
    [
        call("{}", "no_such_tool"),
        "<tool_call>\nweather(city)\n</tool_call>",
        "<tool_call>\n{not json}\n</tool_call>",
        "<tool_call>\n{'name': 'weather', 'arguments': {}}\n</tool_call>",
        '<tool_call>\n{"name": "weather", "arguments": {city: 1}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "wind": 3}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": "{oops"}\n</tool_call>',
        '<tool_call>\n{"name": "weather"',
        "<tool_call>",
        "I write <tool_call> when I call.",
        "a < b, <tool_ca",
        '```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```',
    ],
)
def test_what_only_looks_like_a_call_stays_text_in_full(text: str) -> None:
    answer = read(HERMES, text)
    assert (answer.content, answer.calls) == (text, [])


def test_a_call_after_something_like_one_is_found() -> None:
    looks = call("{}", "no_such_tool")
    answer = read(HERMES, f"{looks} {call('{}', 'now')}")
    assert (answer.content, answer.calls) == (looks, [("now", "{}")])


def test_a_call_that_breaks_in_its_arguments_keeps_what_it_had() -> None:
    """It was sent already. What follows is content."""
    answer = read(HERMES, call('{"city": "Paris", oops}'))
    assert answer.calls == [("weather", '{"city": "Paris", ')]
    assert answer.content == "oops}}\n</tool_call>"


@pytest.mark.parametrize("missing", ["</tool_call>", "}\n</tool_call>"])
def test_a_missing_end_mark_does_not_lose_the_call(missing: str) -> None:
    answer = read(HERMES, call('{"city": "Paris"}').removesuffix(missing))
    assert answer.parsed_calls == [("weather", {"city": "Paris"})]
    assert answer.content == ""


@pytest.mark.parametrize("number", ["1e999", "9" * 6000, "-0.0e-5"])
@pytest.mark.parametrize("template", ["qwen", "qwen3_coder", "lfm2", "gemma_4", "glm"])
def test_numbers_of_any_size_do_no_harm(template: str, number: str) -> None:
    forms = {
        "qwen": f'<tool_call>{{"parameters": {number}, "name": "add"}}',
        "qwen3_coder": f"<function=add>\n<parameter=x>\n{number}\n</parameter>\n</function>",
        "lfm2": f"<|tool_call_start|>[add(x={number})]",
        "gemma_4": f"<|tool_call>call:add{{x:{number}}}",
        "glm": f"<tool_call>add\n<arg_key>x</arg_key><arg_value>{number}</arg_value></tool_call>",
    }
    answer = read(detect(sample(template), renders_tools=True), forms[template])
    assert "Infinity" not in str(answer.calls)
    assert answer.calls or answer.content == forms[template]


def test_very_deep_arguments_end_the_call_and_nothing_else() -> None:
    answer = read(HERMES, call('{"city": ' + "[" * 5000 + "}"))
    assert answer.calls[0][0] == "weather"


def test_without_tools_marks_are_text() -> None:
    assert read(HERMES, call("{}", "now"), tools=()).content == call("{}", "now")


def test_tool_01_a_tool_demanded_by_name_is_the_only_one() -> None:
    answer = read(
        HERMES, call('{"city": "Rome"}') + call("{}", "now"), tool_choice="auto", tool_name="now"
    )
    assert answer.calls == [("now", "{}")]
    assert answer.content == call('{"city": "Rome"}')


def test_a_mark_that_the_prompt_ends_with_begins_a_call() -> None:
    text = '\n{"name": "now", "arguments": {}}\n</tool_call>'
    tail = "<|im_start|>assistant\n<tool_call>\n"
    assert read(HERMES, text, prompt_tail=tail).calls == [("now", "{}")]
    assert read(HERMES, "No, wait.", prompt_tail=tail).content == "No, wait."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "age": 36}',
        '{"title": "weather"}',
        "{",
        "  [1, 2]",
        'Use {"name": "weather", "parameters": {"city": "Paris"}} for that.',
        "<|python_tag|>",
    ],
)
def test_llama_answers_in_json_are_not_calls(text: str) -> None:
    answer = read(detect(sample("llama_3"), renders_tools=True), text)
    assert (answer.content, answer.calls) == (text, [])


def test_content_is_not_held_back_longer_than_a_mark_may_need() -> None:
    parse = parser(HERMES)
    assert parse.push("Hello").content == "Hello"
    assert parse.push(" <to").content == ""
    assert parse.push("day>").content == " <today>"


@pytest.mark.parametrize(
    ("template", "start"),
    [
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\n"),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
        ("gemma_4", '<|tool_call>call:weather{city:<|"|>'),
    ],
)
def test_long_texts_stream_in_families_without_json(template: str, start: str) -> None:
    parse = parser(detect(sample(template), renders_tools=True))
    (first,) = parse.push(start).tool_calls
    assert (first.name, first.arguments) == ("weather", '{"city": "')
    assert parse.push('Par"is').tool_calls == (ToolCallDelta(index=0, arguments='Par\\"is'),)


# --- Reasoning --------------------------------------------------------------------------------

OPENED = "<|im_start|>assistant\n<think>\n"


def test_chat_23_reasoning_is_told_apart_streamed_or_not() -> None:
    answer = read(HERMES, "<think>\nHm, 2 < 3.\n</think>\n\nYes.\n")
    assert (answer.reasoning, answer.content) == ("Hm, 2 < 3.", "Yes.\n")


def test_chat_23_a_block_that_the_template_opened_is_reasoning() -> None:
    answer = read(HERMES, "Hm.\n</think>\n\nYes.", prompt_tail=OPENED)
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


def test_chat_23_a_block_that_the_template_closed_is_not_open() -> None:
    answer = read(HERMES, "Yes.", prompt_tail="<think>\n\n</think>\n\n")
    assert (answer.reasoning, answer.content) == ("", "Yes.")


def test_chat_23_reasoning_that_is_not_told_apart_stays_as_it_is() -> None:
    text = "<think>\nHm.\n</think>\n\nYes."
    answer = read(HERMES, text, reasoning=False)
    assert (answer.reasoning, answer.content) == ("", text)
    answer = read(HERMES, "Hm.\n</think>\n\nYes.", reasoning=False, prompt_tail=OPENED)
    assert answer.content == "Hm.\n</think>\n\nYes."


@pytest.mark.parametrize("separate", [True, False])
def test_calls_begin_after_the_reasoning(separate: bool) -> None:
    thought = f"I could write {call('{}', 'now')} here."
    text = f"<think>{thought}</think>\n{call('{}', 'now')}"
    answer = read(HERMES, text, reasoning=separate)
    assert answer.calls == [("now", "{}")]
    assert answer.reasoning == (thought if separate else "")


def test_reasoning_that_never_ends_is_all_reasoning() -> None:
    answer = read(HERMES, "<think>\nHm, and so on </thi")
    assert (answer.reasoning, answer.content) == ("Hm, and so on </thi", "")


def test_a_think_mark_within_the_answer_is_text() -> None:
    text = "Models write <think>like this</think>."
    assert read(HERMES, text).content == text


def test_in_reasoning_says_where_the_text_is() -> None:
    parse = parser(HERMES)
    seen = []
    for piece in ("<think>", "Hm", "</thi", "nk>", "\n\nYes"):
        parse.push(piece)
        seen.append(parse.in_reasoning)
    assert seen == [True, True, True, False, False]
    assert parser(HERMES, prompt_tail=OPENED).in_reasoning
    assert not parser(HERMES).in_reasoning


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("mistral_named", "[THINK]Hm.[/THINK]Yes."),
        ("command_r", "<|START_THINKING|>Hm.<|END_THINKING|>\n"
         "<|START_RESPONSE|>Yes.<|END_RESPONSE|>"),
        ("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
         "<|channel|>final<|message|>Yes.<|return|>"),
    ],
)  # fmt: skip
def test_chat_23_other_families_mark_reasoning_in_their_own_way(template: str, text: str) -> None:
    answer = read(detect(sample(template), renders_tools=True), text)
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<think></think> <response></response>", "<think>Hm.</think>\n<response>Yes.</response>"),
        ("'Here is my thought process:' 'Here is my response:'",
         "Here is my thought process:\nHm.\nHere is my response:\n\nYes."),
        ("<seed:think></seed:think>", "<seed:think>Hm.</seed:think>Yes."),
        ("<|channel>thought\\n<channel|>", "<|channel>thought\nHm.<channel|>Yes."),
        ("</think> </response>", "<think>Hm.</think>Yes."),
    ],
)  # fmt: skip
def test_reasoning_marks_known_by_the_template(source: str, text: str) -> None:
    answer = read(detect(source, renders_tools=False), text)
    assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")


# --- Harmony ----------------------------------------------------------------------------------

HARMONY = detect(sample("gpt_oss"), renders_tools=True)


def test_harmony_thinks_remarks_and_calls() -> None:
    answer = read(
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Paris"}<|call|>',
    )
    assert (answer.reasoning, answer.content) == ("Hm.", "I look.")
    assert answer.parsed_calls == [("weather", {"city": "Paris"})]


@pytest.mark.parametrize("channel", ["analysis", "final"])
def test_harmony_goes_on_in_a_message_that_the_template_began(channel: str) -> None:
    tail = f"<|end|><|start|>assistant<|channel|>{channel}<|message|>"
    text = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    answer = read(HARMONY, text, prompt_tail=tail)
    if channel == "analysis":
        assert (answer.reasoning, answer.content) == ("Hm.", "Yes.")
    else:
        assert (answer.reasoning, answer.content) == ("", "Hm.\n\nYes.")


def test_harmony_calls_of_other_recipients_stay_text() -> None:
    text = "<|channel|>commentary to=browser.search <|constrain|>json<|message|>{}<|call|>"
    answer = read(HARMONY, text)
    assert (answer.content, answer.calls) == (text, [])


def test_harmony_without_headers_is_text() -> None:
    for text in ("Hello", "to=you", "<|channel|>analysis and no more", "<|start|>", " to"):
        assert read(HARMONY, text).content == text


def test_harmony_reasoning_that_is_not_told_apart_stays_with_its_marks() -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    text = thought + "<|start|>assistant<|channel|>final<|message|>Yes."
    assert read(HARMONY, text, reasoning=False).content == thought + "Yes."


def test_harmony_joins_messages_of_one_kind_with_an_empty_line() -> None:
    start = "<|start|>assistant"
    analysis = "<|channel|>analysis<|message|>"
    answer = read(
        HARMONY,
        f"{analysis}Hm.<|end|>{start}{analysis}Ah.<|end|>"
        f"{start}<|channel|>commentary<|message|>First.<|end|>"
        f"{start}<|channel|>final<|message|>Then.<|return|>",
    )
    assert (answer.reasoning, answer.content) == ("Hm.\n\nAh.", "First.\n\nThen.")


# --- Other -------------------------------------------------------------------------------------


def test_markers_name_what_the_parser_has_to_see() -> None:
    assert {"<tool_call>", "</tool_call>", "<think>", "</think>"} <= set(HERMES.markers)
    assert {"<|channel|>", "<|message|>", "<|call|>"} <= set(HARMONY.markers)
    mistral = detect(sample("mistral_named"), renders_tools=True)
    assert {"[TOOL_CALLS]", "[ARGS]", "[THINK]"} <= set(mistral.markers)
    assert "<|python_tag|>" in detect(sample("llama_3"), renders_tools=True).markers


def test_tool_11_the_preamble_tells_every_tool_and_how_to_call_it() -> None:
    preamble = HERMES.preamble(TOOLS, "auto", None, True)
    assert all(f'"name": "{name}"' in preamble for name in ("weather", "add", "now"))
    assert "Does weather." in preamble and "Does add." in preamble
    assert '<tool_call>\n{"name":' in preamble
    assert "now" not in HERMES.preamble([WEATHER, NOW], "required", "weather", True)
    assert HERMES.preamble(TOOLS, "none", None, True) == ""
    assert HERMES.preamble((), "auto", None, True) == ""


def test_dialects_of_the_same_template_are_equal() -> None:
    assert detect(sample("qwen"), renders_tools=True) == HERMES
    assert isinstance(HERMES, Dialect)
