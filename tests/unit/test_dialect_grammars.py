"""The grammars of every family: they compile, take the family's calls, and take nothing wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import llguidance
import pytest

from ferrum_local.llm.dialects import Dialect, detect
from ferrum_local.llm.dialects.answer import PlainFormat
from ferrum_local.llm.dialects.functionary import AddressedFormat
from tests.unit.chat_templates import sample
from tests.unit.dialects import ADD, NOW, TOOLS, WEATHER, read, tool
from tests.unit.test_dialect_families import FAMILIES, Family, dialect_of, rendered_calls


def families(chosen: Iterable[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", [*chosen], ids=lambda family: family.template)


BY_TEMPLATE = families(FAMILIES)
SEVERAL_CALLS = families(family for family in FAMILIES if family.n_calls > 1)
# Harmony may always think first, and what is written at random never stops thinking.
NOT_HARMONY = families(family for family in FAMILIES if family.dialect != "harmony")
HERMES = detect(sample("qwen"), renders_tools=True)


class Vocabulary:
    """Bytes, an end token, and ``marks`` as special tokens; in the shape that llguidance reads."""

    def __init__(self, marks: Sequence[str] = ()) -> None:
        self.marks = tuple(marks)
        self.tokens = [bytes([i]) for i in range(256)]
        self.tokens += [text.encode() for text in ("<end>", *self.marks)]
        self.eos_token_id = 256
        self.bos_token_id = None
        self.special_token_ids = list(range(256, len(self.tokens)))
        wrapper = llguidance.TokenizerWrapper(self)
        self.tokenizer = llguidance.LLTokenizer(wrapper)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())

    def special(self, text: str) -> str | None:
        return f"<[{self.marks.index(text) + 257}]>" if text in self.marks else None

    def ids(self, text: str) -> list[int]:
        """Marks as their tokens, the rest as bytes."""
        ids: list[int] = []
        while text:
            mark = next((mark for mark in self.marks if text.startswith(mark)), None)
            ids += [self.marks.index(mark) + 257] if mark else text[0].encode()
            text = text[len(mark or "x") :]
        return ids


PLAIN = Vocabulary()
VOCABULARIES = pytest.mark.parametrize("special", [False, True], ids=["text", "tokens"])


def vocabulary(dialect: Dialect, special: bool) -> Vocabulary:
    return Vocabulary(dialect.markers) if special else PLAIN


def grammar(
    dialect: Dialect,
    choice: str = "auto",
    *,
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    name: str | None = None,
    parallel: bool = True,
    words: Vocabulary = PLAIN,
    tail: str = "",
) -> str:
    lark = dialect.grammar(
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel=parallel,
        special=words.special,
        prompt_tail=tail,
        reasoning=True,
    )
    assert lark is not None
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(lark, words.tokenizer)
    assert not is_error and not messages, f"{messages}\n{lark}"
    return lark


def takes(lark: str, text: str, words: Vocabulary = PLAIN) -> bool:
    """The whole text fits, and may end there."""
    matcher = llguidance.LLMatcher(words.tokenizer, lark)
    assert not matcher.is_error(), matcher.get_error()
    ids = words.ids(text)
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


@VOCABULARIES
@BY_TEMPLATE
def test_tool_01_a_demanded_call_is_taken_in_the_family_s_form(
    family: Family, special: bool
) -> None:
    dialect = dialect_of(family)
    words = vocabulary(dialect, special)
    tail, answer = rendered_calls(family, [("weather", {"city": "Zürich\nWest, \"{}'"})])
    for choice, name in (("auto", None), ("required", None), ("required", "weather")):
        lark = grammar(dialect, choice, name=name, words=words, tail=tail)
        assert takes(lark, answer.strip("\n"), words), lark
    other = grammar(dialect, "required", name="now", words=words, tail=tail)
    assert not takes(other, answer.strip("\n"), words)


@VOCABULARIES
@BY_TEMPLATE
def test_unknown_tools_and_wrong_arguments_are_not_taken(family: Family, special: bool) -> None:
    dialect = dialect_of(family)
    words = vocabulary(dialect, special)
    for call in (("nope", {"city": "a"}), ("weather", {"city": 3}), ("weather", {"town": "a"})):
        if call[1]["city" if "city" in call[1] else "town"] == 3 and family.template in (
            "qwen3_coder",
            "glm",
        ):
            continue  # without quotes a 3 is a string
        tail, answer = rendered_calls(family, [call])
        required = grammar(dialect, "required", words=words, tail=tail)
        assert not takes(required, answer, words)
        if family.template != "llama_3" or call[0] != "nope":
            # An object that names no known tool is an answer in JSON.
            auto = grammar(dialect, words=words, tail=tail)
            assert not takes(auto, answer, words), auto


@VOCABULARIES
@BY_TEMPLATE
def test_tool_02_text_is_free_until_a_call_begins(family: Family, special: bool) -> None:
    dialect = dialect_of(family)
    words = vocabulary(dialect, special)
    tail, _ = rendered_calls(family, [("now", {})])
    start = "all\n" if family.template == "functionary_3_2" else ""
    lark = grammar(dialect, words=words, tail=tail)
    for text in ("Hello!", "", "{} [1] 2 < 3, <tool> über 😀\n\n", '{"a": 1}', "call:"):
        assert takes(lark, start + text, words)
    required = grammar(dialect, "required", words=words, tail=tail)
    assert not takes(required, start + "Hello!", words)
    assert not takes(required, start, words)


@VOCABULARIES
@SEVERAL_CALLS
def test_tool_10_several_calls_only_where_they_are_allowed(family: Family, special: bool) -> None:
    dialect = dialect_of(family)
    words = vocabulary(dialect, special)
    tail, answer = rendered_calls(family, [("add", {"x": 1, "y": -2}), ("now", {})])
    for choice in ("auto", "required"):
        both = grammar(dialect, choice, words=words, tail=tail)
        assert takes(both, answer.strip("\n"), words), both
        one = grammar(dialect, choice, parallel=False, words=words, tail=tail)
        assert not takes(one, answer.strip("\n"), words)


SIZED = tool(
    "sized",
    {
        "n": {"type": "integer", "minimum": 0, "maximum": 20},
        "size": {"enum": ["small", "large"]},
        "note": {"type": "string", "maxLength": 3},
        "sure": {"type": "boolean"},
    },
)


def walk(lark: str, rng: random.Random) -> str:
    """Printable text that a model without any sense of its own might write under the grammar."""
    matcher = llguidance.LLMatcher(PLAIN.tokenizer, lark)
    text = b""
    while not matcher.is_accepting():
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        printable = [byte for byte in allowed if byte == 10 or 32 <= byte < 127]
        byte = rng.choice(printable or allowed)
        assert matcher.consume_token(byte)
        text += bytes([byte])
    return text.decode()


@NOT_HARMONY
def test_whatever_the_grammar_lets_through_is_a_call_that_fits_its_schema(family: Family) -> None:
    dialect = dialect_of(family)
    tail, _ = rendered_calls(family, [("now", {})])
    assert isinstance(dialect.format, (PlainFormat, AddressedFormat))
    if isinstance(dialect.format, PlainFormat):
        tail += dialect.format.thinking.closing  # or it would never end its thoughts
    lark = grammar(dialect, "required", tools=[SIZED], parallel=False, tail=tail)
    for seed in range(10):
        text = walk(lark, random.Random(seed))
        ((name, arguments),) = read(dialect, text, tools=[SIZED], prompt_tail=tail).parsed_calls
        assert name == "sized"
        assert list(arguments) == ["n", "size", "note", "sure"], text
        assert arguments["n"] in range(21) and arguments["size"] in ("small", "large"), text
        assert len(arguments["note"]) <= 3 and arguments["sure"] in (True, False), text


# --- Reasoning --------------------------------------------------------------------------------

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@VOCABULARIES
def test_a_demanded_call_comes_after_the_reasoning(special: bool) -> None:
    words = vocabulary(HERMES, special)
    lark = grammar(HERMES, "required", words=words)
    assert takes(lark, f"<think>\nHm, {{}}.\n</think>\n\n{CALL}", words)
    assert takes(lark, CALL, words)
    assert not takes(lark, "<think>\nHm.\n</think>\n\nNo.", words)
    assert not takes(lark, "<think>\nHm.\n</think>", words)
    opened = grammar(HERMES, "required", words=words, tail="<think>\n")
    assert takes(opened, f"Hm.\n</think>\n\n{CALL}", words)
    assert not takes(opened, CALL, words)
    closed = grammar(HERMES, "required", words=words, tail="<think>\n\n</think>\n\n")
    assert takes(closed, CALL, words)
    assert not takes(closed, f"<think>\nHm.\n</think>\n\n{CALL}", words)


@VOCABULARIES
def test_reasoning_may_speak_of_calls(special: bool) -> None:
    words = vocabulary(HERMES, special)
    lark = grammar(HERMES, words=words)
    if not special:
        assert takes(lark, "<think>\nI could <tool_call> now.\n</think>\n\nNo.", words)
    assert takes(lark, f"<think>\nHm.\n</think>\n\nI do.\n{CALL}", words)
    assert not takes(lark, "<think>\nHm.\n</think>\n\n<tool_call>\nNo.", words)
    opened = grammar(HERMES, words=words, tail="<think>\n")
    assert takes(opened, "Hm, and then the model stops", words)
    assert takes(opened, f"Hm.\n</think>\n\n{CALL}", words)


def test_models_that_do_not_think_are_not_let_to() -> None:
    plain = detect("<tool_call>", renders_tools=True)
    assert not takes(grammar(plain, "required"), f"<think>Hm.</think>{CALL}")


@VOCABULARIES
def test_harmony_thinks_remarks_and_calls(special: bool) -> None:
    dialect = detect(sample("gpt_oss"), renders_tools=True)
    words = vocabulary(dialect, special)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    remark = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    for choice in ("auto", "required"):
        lark = grammar(dialect, choice, words=words)
        assert takes(lark, thought + call, words)
        assert takes(lark, call.removesuffix("<|call|>"), words)
        assert takes(lark, thought + remark + call, words) == (choice == "auto")
        assert not takes(lark, thought + call.replace("now", "nope"), words)
        final = thought + "<|channel|>final<|message|>Yes.<|return|>"
        assert takes(lark, final, words) == (choice == "auto")


@VOCABULARIES
def test_harmony_goes_on_in_a_message_that_the_template_began(special: bool) -> None:
    dialect = detect(sample("gpt_oss"), renders_tools=True)
    words = vocabulary(dialect, special)
    tail = "<|start|>assistant<|channel|>analysis<|message|>"
    call = " to=functions.now<|channel|>commentary json<|message|>{}"
    for choice in ("auto", "required"):
        lark = grammar(dialect, choice, words=words, tail=tail)
        assert takes(lark, f"Hm.<|end|><|start|>assistant{call}", words)
        assert not takes(lark, f"Hm.<|end|><|start|>assistant{call[:-1]}7", words)
        assert takes(lark, "Hm.", words) == (choice == "auto")


# --- Other ------------------------------------------------------------------------------------


def test_nothing_is_enforced_without_tools() -> None:
    for tools, choice in (((), "auto"), (TOOLS, "none")):
        assert (
            HERMES.grammar(
                tools=tools,
                tool_choice=choice,
                tool_name=None,
                parallel=True,
                special=PLAIN.special,
                prompt_tail="",
                reasoning=True,
            )
            is None
        )


def test_a_mark_that_the_prompt_ends_with_demands_the_rest_of_the_call() -> None:
    lark = grammar(HERMES, tail="<|im_start|>assistant\n<tool_call>\n")
    assert takes(lark, CALL.removeprefix("<tool_call>\n"))
    assert not takes(lark, "No.")
    deepseek = detect(sample("deepseek"), renders_tools=False)  # the mark is not the form asked for
    assert takes(grammar(deepseek, tail="<｜tool▁call▁begin｜>"), "Anything")


def test_a_small_model_cannot_go_on_with_white_space_or_new_properties() -> None:
    lark = grammar(HERMES, "required", tools=[ADD])
    start = '<tool_call>\n{"name": "add", "arguments": '
    assert takes(lark, start + '{"x": 1, "y": 2}}\n</tool_call>')
    assert takes(lark, start + '{"x":1,"y":2}}</tool_call>')
    for wrong in (
        '{"x": 1,  "y": 2}',
        '{\n"x": 1, "y": 2}',
        '{"x": 1, "y": 2, "z": 3}',
        '{"x": 1}',
    ):
        assert not takes(lark, start + wrong + "}\n</tool_call>")


def test_properties_that_the_schema_allows_are_allowed() -> None:
    free = tool("free", {"a": {"type": "integer"}})
    free["function"]["parameters"]["additionalProperties"] = {"type": "integer"}
    lark = grammar(HERMES, "required", tools=[free])
    start = '<tool_call>\n{"name": "free", "arguments": '
    assert takes(lark, start + '{"a": 1, "b": 2}}\n</tool_call>')
    assert not takes(lark, start + '{"a": 1, "b": "c"}}\n</tool_call>')


def test_schemas_with_shared_definitions_compile_in_every_family() -> None:
    place = tool("place", {"at": {"$ref": "#/$defs/Point"}, "to": {"type": ["string", "null"]}})
    place["function"]["parameters"]["$defs"] = {
        "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    }
    place["function"]["parameters"]["required"] = ["at"]
    for family in FAMILIES:
        dialect = dialect_of(family)
        for arguments in ({"at": {"x": 1.5}, "to": "b"}, {"at": {"x": 1.5}}):
            tail, answer = rendered_calls(family, [("place", arguments)])
            lark = grammar(dialect, "required", tools=[place, WEATHER], tail=tail)
            if family.template not in ("qwen3_coder", "glm"):  # there a text or null has quotes
                assert takes(lark, answer.strip("\n")), lark
            wrong = answer.replace("1.5", "true")
            assert not takes(lark, wrong.strip("\n"))


def test_values_in_tags_follow_their_schema() -> None:
    limited = tool(
        "limited",
        {
            "code": {"type": "string", "pattern": "^[a-c]{2}/[0-9]$"},
            "kind": {"enum": ["x", "y"]},
            "short": {"type": "string", "maxLength": 3},
        },
    )
    coder = detect(sample("qwen3_coder"), renders_tools=True)
    lark = grammar(coder, "required", tools=[limited, NOW])

    def call(code: str, kind: str, short: str) -> str:
        values = {"code": code, "kind": kind, "short": short}
        tags = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function=limited>\n{tags}</function>\n</tool_call>"

    assert takes(lark, call("ab/1", "x", "abc"))
    assert not takes(lark, call("ad/1", "x", "abc"))
    assert not takes(lark, call("ab/1", "z", "abc"))
    assert not takes(lark, call("ab/1", "x", "abcd"))


def test_schemas_that_refer_to_themselves_compile_in_every_family() -> None:
    tree = tool("tree", {"root": {"$ref": "#/$defs/Node"}})
    tree["function"]["parameters"]["$defs"] = {
        "Node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "inner": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["value"],
        }
    }
    arguments = {"root": {"value": 1, "inner": [{"value": 2, "inner": [{"value": 3}]}]}}
    for family in FAMILIES:
        tail, answer = rendered_calls(family, [("tree", arguments)])
        lark = grammar(dialect_of(family), "required", tools=[tree], tail=tail)
        assert takes(lark, answer.strip("\n")), lark
        assert not takes(lark, answer.strip("\n").replace("3", "true"))


def test_arguments_with_alternatives_are_json_inside_of_the_function_s_tag() -> None:
    either = tool("either", {"a": {"type": "integer"}, "b": {"type": "integer"}})
    either["function"]["parameters"].pop("required")
    either["function"]["parameters"]["anyOf"] = [{"required": ["a"]}, {"required": ["b"]}]
    lark = grammar(detect(sample("qwen3_coder"), renders_tools=True), "required", tools=[either])
    call = '<tool_call>\n<function=either>{"b": 1}</function>\n</tool_call>'
    assert takes(lark, call)
    assert not takes(lark, call.replace('"b": 1', ""))


def test_many_tools_compile() -> None:
    tools = [tool(f"tool_{i}", {f"p{j}": {"type": "string"} for j in range(8)}) for i in range(60)]
    for family in FAMILIES:
        grammar(dialect_of(family), tools=tools)
