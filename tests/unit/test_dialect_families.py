"""Calls of every family: found by the template, parsed, and what history shows parses back."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from ferrum_local.llm.dialects import Dialect, detect
from tests.unit.chat_templates import chat_template, sample
from tests.unit.dialects import ADD, NOW, TOOLS, WEATHER, joined, parser, read, tool


class Family(NamedTuple):
    template: str  # in tests/unit/chat_templates
    dialect: str
    end: str  # what ends a turn
    n_calls: int = 2  # that one answer can have


FAMILIES = [
    Family("qwen", "hermes", "<|im_end|>"),
    Family("qwen3_coder", "qwen3-coder", "<|im_end|>"),
    Family("glm", "glm", "<|assistant|>"),
    Family("llama_3", "llama-3", "<|eot_id|>", n_calls=1),
    Family("mistral", "mistral", "</s>"),
    Family("mistral_named", "mistral", "</s>"),
    Family("granite_3", "granite", "<|end_of_text|>"),
    Family("phi_4_mini", "phi-4-mini", "<|end|>"),
    Family("functionary_3_1", "functionary-3.1", "<|eot_id|>"),
    Family("functionary_3_2", "functionary-3.2", "<|eot_id|>"),
    Family("gpt_oss", "harmony", "<|start|>assistant", n_calls=1),
    Family("gemma_4", "gemma-4", "<turn|>"),
    Family("function_gemma", "function-gemma", "<end_of_turn>"),
    Family("lfm2", "lfm2", "<|im_end|>"),
    Family("command_r", "command-r", "<|END_OF_TURN_TOKEN|>"),
    Family("deepseek_r1", "deepseek", "</s>"),
]
BY_TEMPLATE = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.template)

NOTE = tool(
    "note",
    {
        "text": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"name": {"type": "string"}}},
        "stars": {"type": "integer"},
        "done": {"type": "boolean"},
        "due": {"type": ["string", "null"]},
    },
)
NOTE_ARGUMENTS: dict[str, Any] = {
    "text": 'He said: "ü, {x} [y]; done" \\o/',
    "tags": ["a b", "c,d"],
    "place": {"name": "Zürich, am See"},
    "stars": -5,
    "done": True,
    "due": None,
}


def dialect_of(family: Family) -> Dialect:
    return detect(sample(family.template), renders_tools=True)


def rendered_calls(family: Family, calls: list[tuple[str, dict[str, Any]]]) -> tuple[str, str]:
    """The end of the prompt, and an answer with these calls as the template writes it."""
    template = chat_template(sample(family.template))
    user = {"role": "user", "content": "Go on."}
    assistant = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, (name, arguments) in enumerate(calls)
        ],
    }
    tools = [*TOOLS, NOTE]
    prompt = template.render([user], tools=tools)
    history = template.render([user, assistant], tools=tools)
    # What a template opens in the prompt for the model to go on with is not in the history.
    for opened in ("<think>\n", "<|channel>thought\n<channel|>", ">>>", ""):
        if opened and prompt.endswith(opened) and not history.startswith(prompt):
            prompt = prompt.removesuffix(opened)
            break
    assert history.startswith(prompt)
    answer = history[len(prompt) :].partition(family.end)[0]
    return prompt[-200:], answer


@BY_TEMPLATE
def test_the_template_tells_the_dialect(family: Family) -> None:
    assert dialect_of(family).name == family.dialect


@BY_TEMPLATE
def test_tool_10_calls_in_history_parse_back_to_themselves(family: Family) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("weather", {"city": "Zürich\nWest"}),
        ("add", {"x": 1, "y": -20}),
    ]
    tail, answer = rendered_calls(family, calls[: family.n_calls])
    read_back = read(dialect_of(family), answer, prompt_tail=tail)
    assert read_back.parsed_calls == calls[: family.n_calls]
    assert (read_back.content, read_back.reasoning) == ("", "")
    assert len(set(read_back.ids)) == family.n_calls


@BY_TEMPLATE
def test_nested_and_awkward_arguments_parse_back(family: Family) -> None:
    tail, answer = rendered_calls(family, [("note", NOTE_ARGUMENTS)])
    read_back = read(dialect_of(family), answer, tools=[*TOOLS, NOTE], prompt_tail=tail)
    assert read_back.parsed_calls == [("note", NOTE_ARGUMENTS)]
    assert read_back.content == ""


@BY_TEMPLATE
def test_tool_06_a_call_without_arguments_has_an_empty_object(family: Family) -> None:
    tail, answer = rendered_calls(family, [("now", {})])
    assert read(dialect_of(family), answer, prompt_tail=tail).calls == [("now", "{}")]


@BY_TEMPLATE
def test_a_call_of_an_unknown_tool_stays_text_in_full(family: Family) -> None:
    tail, answer = rendered_calls(family, [("weather", {"city": "Paris"})])
    read_back = read(dialect_of(family), answer, tools=[ADD, NOW], prompt_tail=tail)
    assert read_back.calls == []
    assert read_back.content == answer


@BY_TEMPLATE
def test_with_tool_choice_none_a_call_stays_text(family: Family) -> None:
    tail, answer = rendered_calls(family, [("weather", {"city": "Paris"})])
    read_back = read(dialect_of(family), answer, tool_choice="none", prompt_tail=tail)
    assert read_back.calls == []
    assert "weather" in read_back.content and "Paris" in read_back.content


@BY_TEMPLATE
def test_arguments_grow_while_they_arrive(family: Family) -> None:
    """However a family writes arguments, they are fragments of one JSON object."""
    tail, answer = rendered_calls(family, [("note", NOTE_ARGUMENTS)])
    parse = parser(dialect_of(family), tools=[NOTE], prompt_tail=tail)
    fragments = [call.arguments for char in answer for call in parse.push(char).tool_calls]
    assert len([fragment for fragment in fragments if fragment]) >= len(NOTE_ARGUMENTS)
    assert json.loads("".join(fragments)) == NOTE_ARGUMENTS


@BY_TEMPLATE
def test_tool_07_a_cut_off_call_is_what_was_streamed(family: Family) -> None:
    tail, answer = rendered_calls(family, [("weather", {"city": "Paris and on"})])
    for n in range(len(answer)):
        cut = joined(parser(dialect_of(family), prompt_tail=tail), [answer[:n]])
        if cut.calls:
            ((name, arguments),) = cut.calls
            assert name == "weather"
            assert '{"city": "Paris and on"}'.startswith(arguments)
            assert cut.content == ""
        else:
            assert cut.content.strip() == answer[:n].strip()


@BY_TEMPLATE
def test_short_ids_only_where_the_template_demands_them(family: Family) -> None:
    tail, answer = rendered_calls(family, [("now", {})])
    (call_id,) = read(dialect_of(family), answer, prompt_tail=tail).ids
    if family.template == "mistral":
        assert len(call_id) == 9 and call_id.isalnum()
    else:
        assert call_id.startswith("call_") and len(call_id) == len("call_") + 24


def test_templates_without_tools_are_asked_for_the_hermes_form() -> None:
    for name in ("gemma", "phi", "llama_2", "user_and_assistant_only"):
        assert detect(sample(name), renders_tools=False).name == "generic"
    assert detect(None, renders_tools=False).name == "generic"


def test_a_form_that_only_history_has_is_read_beside_the_one_that_is_asked_for() -> None:
    """DeepSeek's templates write past calls, but tell nothing of tools."""
    generic = detect(sample("deepseek"), renders_tools=False)
    tail, answer = rendered_calls(Family("deepseek", "", "</s>"), [("now", {})])
    assert read(generic, answer, prompt_tail=tail).calls == [("now", "{}")]
    hermes = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert read(generic, hermes).calls == [("now", "{}")]


# --- Forms beside the one that the template writes -----------------------------------------

WEATHER_CALL = [("weather", {"city": "Paris"})]
NAMED = '{"name": "weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("qwen", f"<tool_call>[{NAMED}]</tool_call>"),
        ("qwen", '<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"}</tool_call>'),
        (
            "qwen",
            '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        ),
        ("qwen3_coder", "<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>"),
        (
            "qwen3_coder",
            f"<tool_call>\n{NAMED}\n</tool_call>",
        ),
        ("llama_3", '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}'),
        ("llama_3", '{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}'),
        ("llama_3", '<|python_tag|>weather.call(city="Paris")'),
        ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}'),
        ("mistral_named", '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}'),
        ("mistral_named", f"[TOOL_CALLS][{NAMED}]"),
        ("granite_3", f"<tool_call>[{NAMED}]"),
        (
            "phi_4_mini",
            f"<|tool_call|>{NAMED}<|/tool_call|>",
        ),
        (
            "lfm2",
            f"<|tool_call_start|>[{NAMED}]<|tool_call_end|>",
        ),
        ("lfm2", "<|tool_call_start|>[weather(city='Paris')]<|tool_call_end|>"),
        ("function_gemma", "<start_function_call>call:weather{city:Paris}<end_function_call>"),
        (
            "gpt_oss",
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            '{"city": "Paris"}<|call|>',
        ),
        (
            "deepseek_r1",
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ],
)
def test_other_forms_of_a_family_are_read(template: str, text: str) -> None:
    answer = read(detect(sample(template), renders_tools=True), text)
    assert (answer.parsed_calls, answer.content) == (WEATHER_CALL, "")


@pytest.mark.parametrize(
    ("source", "name", "text"),
    [
        (
            "{tools} ```tool_code",
            "gemma-tool-code",
            "```tool_code\nweather(city='Paris')\n```",
        ),
        ("<TOOLCALL>", "nemotron", f"<TOOLCALL>[{NAMED}]</TOOLCALL>"),
        (
            "pythonic <function_calls>",
            "olmo-3",
            "<function_calls>\nweather(city='Paris')\n</function_calls>",
        ),
        (
            "<seed:tool_call> <parameter=",
            "seed-oss",
            "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n"
            "</seed:tool_call>",
        ),
        ("<tool_calls>", "apriel", f"<tool_calls>[{NAMED}]</tool_calls>"),
        ("[func_name1(params)]", "pythonic", '[weather(city="Paris")]'),
        (" functools[", "functools", f" functools[{NAMED}]"),
    ],
)
def test_families_known_by_a_line_of_their_template(source: str, name: str, text: str) -> None:
    dialect = detect(source, renders_tools=True)
    assert dialect.name == name
    assert read(dialect, text).parsed_calls == WEATHER_CALL


@pytest.mark.parametrize("template", ["llama_3", "functionary_3_1"])
def test_raw_code_goes_to_a_python_tool(template: str) -> None:
    python = tool("python", {"code": {"type": "string"}})
    answer = read(
        detect(sample(template), renders_tools=True),
        '<|python_tag|>print("hi")\nprint(2)',
        tools=[python, WEATHER],
    )
    assert answer.parsed_calls == [("python", {"code": 'print("hi")\nprint(2)'})]
    text = '<|python_tag|>print("hi")'
    assert read(detect(sample(template), renders_tools=True), text).content == text


def test_functionary_says_something_and_calls() -> None:
    dialect = detect(sample("functionary_3_2"), renders_tools=True)
    answer = read(
        dialect, 'all\nLet me look. >>> x\n>>>weather\n{"city": "Paris"}', prompt_tail="\n\n>>>"
    )
    assert answer.content == "Let me look. >>> x"
    assert answer.parsed_calls == WEATHER_CALL


def test_xml_values_follow_the_schema() -> None:
    """A string stays one even if it looks like a number; a number becomes one."""
    sized = tool("size", {"text": {"type": "string"}, "n": {"type": "number"}, "any": {}})
    answer = read(
        detect(sample("qwen3_coder"), renders_tools=True),
        "<tool_call>\n<function=size>\n<parameter=text>\n12\n</parameter>\n<parameter=n>\n12\n"
        "</parameter>\n<parameter=any>\nTrue\n</parameter>\n</function>\n</tool_call>",
        tools=[sized],
    )
    assert answer.parsed_calls == [("size", {"text": "12", "n": 12, "any": True})]
