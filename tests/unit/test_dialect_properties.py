"""Whatever a model writes, and however the text is split: the same result, and nothing lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ferrum_local.llm.dialects import detect
from ferrum_local.llm.dialects.gemma import GEMMA_4
from ferrum_local.llm.dialects.json_scanner import JsonScanner
from tests.unit.chat_templates import sample
from tests.unit.dialects import TOOLS, joined, parser
from tests.unit.test_dialect_families import FAMILIES, NOTE, Family, rendered_calls

DIALECTS = {
    family.template: detect(sample(family.template), renders_tools=True) for family in FAMILIES
}
DIALECTS["olmo_3"] = detect("pythonic <function_calls>", renders_tools=True)
DIALECTS["pythonic"] = detect("[func_name1(", renders_tools=True)
DIALECTS["seed"] = detect("<seed:tool_call><parameter=", renders_tools=True)
ALL_TOOLS = (*TOOLS, NOTE)
NAMES = [*DIALECTS]

COMMON = [
    *("weather", "add", "now", "nope", '{"name": "weather", "', 'arguments": ', 'parameters": '),
    *('{"city": "Paris"}', "{}", "}", "]", "[", '"', "\\", "\n", " ", "\n\n", ",", ":", ";"),
    *("city", "x", "=", "call:", "functions.", " to=functions.", "assistant", "commentary", "json"),
    *("analysis", "final", "all\n", ">", "<", "</think>", "<think>", "<function=", "</function>"),
    *("<parameter=city>", "</parameter>", "function", "```json\n", "```", "Hm.", "über", "😀"),
    *("1", "-2.5", "(", ")", "true", "null", "'", "1]", '{"name": "now"}', ".call("),
]  # fmt: skip


CALLS: list[list[tuple[str, dict[str, Any]]]] = [
    [("weather", {"city": "Paris"}), ("now", {})],
    [("add", {"x": 1, "y": -20})],
    [("note", {"text": 'a "b"\n', "tags": ["c"], "place": {"name": "d"}, "due": None})],
]
ANSWERS = {
    family.template: [rendered_calls(family, calls[: family.n_calls])[1] for calls in CALLS]
    for family in FAMILIES
}


@st.composite
def texts(draw: st.DrawFn, name: str) -> str:
    """Text put together from what the family's parser looks for, or a call with a few edits."""
    pieces = st.sampled_from([*COMMON, *DIALECTS[name].markers]) | st.text(max_size=5)
    if name not in ANSWERS or draw(st.integers(0, 3)) == 0:
        return draw(st.lists(pieces, max_size=25).map("".join))
    text = draw(st.sampled_from(ANSWERS[name]))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + draw(st.just("") | pieces) + text[end:]
    return draw(st.sampled_from(["", "Well, ", "<think>Hm.</think>"])) + text


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in zip(places, places[1:], strict=False)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
TAILS = st.sampled_from(["", "<think>\n", "assistant\n", ">>>", "<|start|>assistant"])


@settings(max_examples=1000, deadline=None)
@given(st.data(), st.sampled_from(NAMES), CUTS, TAILS, st.booleans())
def test_any_split_of_any_text_gives_the_same(
    data: st.DataObject, name: str, cuts: list[int], tail: str, reasoning: bool
) -> None:
    dialect = DIALECTS[name]
    text = data.draw(texts(name))
    options: dict[str, Any] = {"tools": ALL_TOOLS, "prompt_tail": tail, "reasoning": reasoning}
    whole = joined(parser(dialect, **options), [text])
    pieces = joined(parser(dialect, **options), split(text, cuts))
    assert (pieces.content, pieces.reasoning, pieces.calls) == (
        whole.content,
        whole.reasoning,
        whole.calls,
    )
    single = joined(parser(dialect, **options), text)
    assert single.calls == whole.calls and single.content == whole.content


@settings(max_examples=500, deadline=None)
@given(st.data(), st.sampled_from(NAMES), CUTS)
def test_text_without_calls_comes_out_unchanged(
    data: st.DataObject, name: str, cuts: list[int]
) -> None:
    dialect = DIALECTS[name]
    text = data.draw(texts(name))
    answer = joined(parser(dialect, tools=ALL_TOOLS, reasoning=False), split(text, cuts))
    if not answer.calls and name not in ("gpt_oss", "functionary_3_2"):
        assert answer.content == text


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="ab <>[]{}|\n\"'=:;,.`", max_size=40), CUTS)
@example("  leading and trailing  \n", [])
def test_ordinary_text_comes_out_unchanged(name: str, text: str, cuts: list[int]) -> None:
    answer = joined(parser(DIALECTS[name], tools=ALL_TOOLS), split(text, cuts))
    assert (answer.content, answer.reasoning, answer.calls) == (text, "", [])


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.template)
@settings(max_examples=25, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "text": st.text(alphabet="abc ü😀\"'\\{}[]\n,:;()=<>|/`", max_size=30),
            "tags": st.lists(st.text(alphabet="ab,\"']} ", max_size=5), max_size=3),
            "place": st.fixed_dictionaries({"name": st.text(alphabet="ab }\"'", max_size=5)}),
            "stars": st.integers(-(10**15), 10**15),
            "done": st.booleans(),
            "due": st.none() | st.sampled_from(["today", "a, b"]),
        }
    ),
    CUTS,
)
def test_calls_with_any_arguments_parse_back(
    family: Family, arguments: dict[str, Any], cuts: list[int]
) -> None:
    if family.template in ("qwen3_coder", "glm"):
        # Their form has no escapes: whitespace at the ends is not told from the form's own.
        arguments = {**arguments, "text": f"({arguments['text']})"}
    if family.template == "gemma_4":  # its form cannot write this inside of a text
        assume(GEMMA_4.quote not in arguments["text"])
    tail, text = rendered_calls(family, [("note", arguments)])
    answer = joined(
        parser(DIALECTS[family.template], tools=ALL_TOOLS, prompt_tail=tail), split(text, cuts)
    )
    assert answer.parsed_calls == [("note", arguments)]


# --- JSON --------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def scan(text: str, cuts: list[int]) -> tuple[bool, str]:
    scanner = JsonScanner()
    seen = ""
    for piece in split(text, cuts):
        while piece and not scanner.done and not scanner.failed:
            n_read, given_on = scanner.feed(piece)
            seen += given_on
            piece = piece[n_read:]
    return scanner.done, seen


@settings(max_examples=300, deadline=None)
@given(JSON_VALUES, st.sampled_from([None, 1, 4]), CUTS)
def test_json_of_any_kind_is_complete_at_its_end(
    value: object, indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps({"value": value}, indent=indent, ensure_ascii=bool(cuts))
    assert scan(text + "  rest", cuts) == (True, text)
    for n in range(len(text)):
        assert not scan(text[:n], [])[0]


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet='{}[]",:\\ \n0123456789.eE+-truefalsn', max_size=30))
@example('"a":01}')
@example('"a":1,}')
@example('"a":1 2}')
@example('"a":"\\x"}')
@example('"a":"\\u12g4"}')
@example('"a":[}')
@example('"a":[1}')
@example('"a":-}')
@example('"a":tru}')
@example('"a":1.e5}')
def test_what_the_scanner_takes_is_what_json_takes(text: str) -> None:
    done, seen = scan("{" + text, [])
    if done:
        json.loads(seen)
    else:
        with pytest.raises(ValueError):
            json.loads("{" + text.replace("\n", " "))
