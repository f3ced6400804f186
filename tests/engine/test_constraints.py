"""Answers that must match a grammar, with real vocabularies and real models."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.structured import CUSTOMER
from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import Cancelled, InvalidRequest, Unavailable
from ferrum_local.llm.constraint import AnswerForm, GrammarCompiler, TokenMasks, mark_in_lark
from ferrum_local.llm.model import LlamaModel
from ferrum_local.types import (
    Constraint,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    LlmOptions,
    ModelSpec,
)
from schema_cases import SCHEMAS
from tests.conftest import SMOLLM2
from tests.engine.test_generation import chat, infer_together, request, runtime_of
from tests.engine.tiny_models import write_llama, write_mamba

PROMPT = chat("Invent a customer and give me the record as JSON.")
MAX_WALK = 120  # tokens


def constrained(kind: str, value: Any = None, **params: Any) -> InferenceRequest:
    made = request(PROMPT, **{"max_tokens": 120, **params})
    constraint = Constraint(kind=kind, value=value, param="field")  # type: ignore[arg-type]
    return InferenceRequest(
        id=made.id, model_id="", prompt=made.prompt, sampling_params=made.sampling_params,
        constraint=constraint,
    )  # fmt: skip


def infer(engine: LocalEngine, kind: str, value: Any = None, **params: Any) -> InferenceResponse:
    return engine.infer(constrained(kind, value, **params))


def text_of(answer: InferenceResponse) -> str:
    return answer.choices[0].text


def compiler_of(engine: LocalEngine) -> GrammarCompiler:
    return runtime_of(engine).grammars


def refusal(engine: LocalEngine, kind: str, value: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        infer(engine, kind, value)
    return refused.value


# -- what an answer is ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("regex", r"[A-Z][a-z]{2,8} [0-9]{4}", r"[A-Z][a-z]{2,8} [0-9]{4}"),
        (
            "choice",
            ("yes", "no", 'a "quoted"\n\\ choice', "nö"),
            r'yes|no|nö|a "quoted"\n\\ choice',
        ),
        ("choice", ("only",), "only"),
        ("gbnf", 'root ::= "I say " word "!"\nword ::= "hi" | "ho" "ho"*', r"I say (hi|(ho)+)!"),
        ("lark", 'start: "<" WORD ">"\nWORD: /[a-z]{1,5}/', r"<[a-z]{1,5}>"),
    ],
)
def test_an_answer_matches_its_grammar_and_ends_with_it(
    engine: LocalEngine, kind: str, value: Any, pattern: str
) -> None:
    for temperature in (0.0, 1.0):
        answer = infer(engine, kind, value, temperature=temperature, max_tokens=40)
        assert re.fullmatch(pattern, text_of(answer)), text_of(answer)
        assert answer.choices[0].finish_reason is FinishReason.STOP


def test_json_05_a_json_object_is_one_object_and_stops(engine: LocalEngine) -> None:
    stopped = []
    for seed in range(6):  # some of this model's records have one text without an end
        answer = infer(engine, "json_object", temperature=0.7, seed=seed, max_tokens=200)
        if answer.choices[0].finish_reason is FinishReason.STOP:
            stopped.append(text_of(answer))
        else:
            assert answer.choices[0].finish_reason is FinishReason.LENGTH
            with pytest.raises(json.JSONDecodeError):  # or else it went on behind the object
                json.JSONDecoder().raw_decode(text_of(answer))
    assert stopped
    for text in stopped:
        value, end = json.JSONDecoder().raw_decode(text)
        assert isinstance(value, dict)
        assert end == len(text)


def test_forced_tokens_take_no_step_of_their_own(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    infer(engine, "json_schema", CUSTOMER)
    before = counters.steps, counters.generated_tokens
    answer = infer(engine, "json_schema", CUSTOMER)
    steps = counters.steps - before[0]
    n_tokens = answer.usage.completion_tokens
    assert n_tokens == len(answer.choices[0].token_ids)
    assert counters.generated_tokens - before[1] == n_tokens
    assert steps <= n_tokens / 2, f"{steps} steps for {n_tokens} tokens"
    jsonschema_rs.validate(CUSTOMER, json.loads(text_of(answer)))
    # The tokens are those that the tokenizer makes of the text, as far as they are forced.
    model = runtime_of(engine).model
    tokens = model.tokenize('{"customer_full_name":', add_special=False, parse_special=False)
    n_forced = len(tokens) - 1  # the last one may become longer
    assert tokens[:n_forced] == list(answer.choices[0].token_ids[:n_forced])


def test_an_answer_that_is_forced_from_end_to_end_is_not_sampled(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    infer(engine, "choice", ("only this one",))
    before = counters.steps
    assert text_of(infer(engine, "choice", ("only this one",))) == "only this one"
    assert counters.steps - before == 1


def test_logprobs_change_nothing_and_score_every_token(engine: LocalEngine) -> None:
    for params in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
        plain = infer(engine, "json_schema", CUSTOMER, **params)
        scored = infer(engine, "json_schema", CUSTOMER, logprobs=2, **params)
        assert [s.token_id for s in scored.choices[0].logprobs] == list(scored.choices[0].token_ids)
        # The model's own, not what the grammar leaves: a forced key is no sure thing to it.
        first = scored.choices[0].logprobs[0]
        assert first.logprob is not None
        assert first.logprob < -0.5
        assert first.top[0].logprob > first.logprob
        # Evaluated one by one and not together, so near ties may fall otherwise.
        same = len(os.path.commonprefix([text_of(plain), text_of(scored)]))
        assert same >= len('{"customer_full_name":"')


def test_streamed_text_equals_unstreamed_text_and_usage(engine: LocalEngine) -> None:
    whole = infer(engine, "json_schema", CUSTOMER)
    with engine.infer_stream(constrained("json_schema", CUSTOMER)) as stream:
        chunks = list(stream)
    assert "".join(c.text for c in chunks) == text_of(whole)
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert stream.usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("max_tokens", [1, 3, 7, 20])
def test_json_06_max_tokens_cuts_also_inside_of_forced_text(
    engine: LocalEngine, max_tokens: int
) -> None:
    whole = infer(engine, "json_schema", CUSTOMER)
    cut = infer(engine, "json_schema", CUSTOMER, max_tokens=max_tokens)
    assert cut.usage.completion_tokens == max_tokens
    assert cut.choices[0].finish_reason is FinishReason.LENGTH
    assert text_of(cut)
    assert text_of(whole).startswith(text_of(cut))
    matcher = compiler_of(engine).compile(Constraint(kind="json_schema", value=CUSTOMER))
    assert matcher.n_possible(list(cut.choices[0].token_ids)) == max_tokens


def test_stop_strings_cut_as_always(engine: LocalEngine) -> None:
    answer = infer(engine, "json_schema", CUSTOMER, stop=("_age",))
    assert text_of(answer).endswith('"customer')
    assert answer.choices[0].finish_reason is FinishReason.STOP


def test_choices_and_concurrent_requests_each_have_their_own_place(engine: LocalEngine) -> None:
    requests = [
        constrained("json_schema", CUSTOMER, n=2, temperature=1.0, seed=1),
        constrained("regex", "[a-z]{5}", temperature=1.0),
        constrained("choice", ("red", "green", "blue"), temperature=1.0),
        request(chat("Count to ten."), max_tokens=20),
    ]
    records, word, colour, free = infer_together(engine, requests)
    texts = [c.text for c in records.choices]
    assert len(set(texts)) == 2
    for text in texts:
        jsonschema_rs.validate(CUSTOMER, json.loads(text))
    assert re.fullmatch("[a-z]{5}", text_of(word))
    assert text_of(colour) in ("red", "green", "blue")
    assert free.usage.completion_tokens > 0
    runtime_of(engine).runner.check()


def test_a_prediction_is_drafted_from_within_the_grammar(engine: LocalEngine) -> None:
    counters = runtime_of(engine).runner.counters
    params: dict[str, Any] = {"max_tokens": 60}
    value = {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}
    plain = infer(engine, "json_schema", value, **params)
    predicted = constrained("json_schema", value, **params)
    predicted = InferenceRequest(
        id=predicted.id, model_id="", prompt=predicted.prompt, constraint=predicted.constraint,
        sampling_params=predicted.sampling_params, prediction=text_of(plain),
    )  # fmt: skip
    before = counters.draft_tokens_accepted
    answer = engine.infer(predicted)
    assert counters.draft_tokens_accepted > before
    assert text_of(answer)[:20] == text_of(plain)[:20]
    matcher = compiler_of(engine).compile(Constraint(kind="json_schema", value=value))
    tokens = list(answer.choices[0].token_ids)
    assert matcher.n_possible(tokens) == len(tokens)
    runtime_of(engine).runner.check()


def test_cancelling_a_constrained_request_ends_it(engine: LocalEngine) -> None:
    endless = constrained("regex", "[a-z ]{2000}", max_tokens=900)
    with engine.infer_stream(endless) as stream:
        next(iter(stream))
        assert engine.cancel(endless.id)
        with pytest.raises(Cancelled):
            list(stream)
    runtime_of(engine).runner.check()


# -- together with fields that could leave nothing to choose from ------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"ignore_eos": True},
        {"min_tokens": 100},
        {"logit_bias": {t: float("-inf") for t in range(40_000)}},
        {"logit_bias": {t: -100.0 for t in range(40_000)}, "temperature": 1.0},
        {"typical_p": 0.2, "temperature": 1.0},
        {"mirostat": 1, "temperature": 1.0},
        {"mirostat": 2, "temperature": 1.0},
        {"top_n_sigma": 0.5, "xtc_probability": 1.0, "temperature": 2.0},
        {"repeat_penalty": 2.0, "dry_multiplier": 5.0, "frequency_penalty": 2.0},
    ],
    ids=lambda params: "-".join(params),
)
def test_the_grammar_wins_over_fields_that_would_forbid_all(
    engine: LocalEngine, params: dict[str, Any]
) -> None:
    value = r"[0-9]{3} (yes|no)"
    answer = infer(engine, "regex", value, **params)
    assert re.fullmatch(value, text_of(answer))
    assert answer.choices[0].finish_reason is FinishReason.STOP


def test_an_end_token_is_left_where_the_grammar_has_nothing_else(engine: LocalEngine) -> None:
    ends = " | ".join(f"<[{t}]>" for t in sorted(runtime_of(engine).model.eog_tokens))
    answer = infer(engine, "lark", f'start: "Hello" ({ends})', min_tokens=20)
    assert text_of(answer) == "Hello"
    assert answer.choices[0].finish_reason is FinishReason.STOP


def test_min_tokens_holds_off_an_end_that_the_grammar_only_allows(engine: LocalEngine) -> None:
    answer = infer(engine, "regex", "[a-z ]*", min_tokens=16, max_tokens=20)
    assert answer.usage.completion_tokens >= 16
    endless = infer(engine, "regex", "[a-z ]*", ignore_eos=True, max_tokens=20)
    assert endless.usage.completion_tokens == 20


# -- every state of a grammar -----------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(sorted(SCHEMAS)), seed=st.integers(0, 2**32 - 1), jump=st.booleans())
def test_whatever_the_model_says_the_text_is_valid_or_a_true_prefix(
    engine: LocalEngine, name: str, seed: int, jump: bool
) -> None:
    """Random logits instead of a model's: any token that the masks let through may come."""
    schema = SCHEMAS[name]
    model = runtime_of(engine).model
    constraint = Constraint(kind="json_schema", value=schema)
    matcher = compiler_of(engine).compile(constraint)
    judge = matcher.clone()
    masks = TokenMasks(1, model, 1)
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    while len(tokens) < MAX_WALK and not matcher.is_finished:
        forced = matcher.take_forced(MAX_WALK - len(tokens)) if jump else []
        tokens += forced
        if forced:
            continue
        logits = random.standard_normal(model.n_vocab, dtype=np.float32)
        token = masks.apply(matcher, 0, logits, may_end=True)
        if token in model.eog_tokens:
            break
        matcher.accept(token)
        tokens.append(token)
    assert judge.n_possible(tokens) == len(tokens)
    text = b"".join(model.token_bytes(t) for t in tokens).decode("utf-8", errors="strict")
    if len(tokens) < MAX_WALK:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        validator.validate(json.loads(text))
    assert not re.search(r"[\n\t]|\s{2}", re.sub(r'"(\\.|[^"\\])*"?', "", text))


# -- what cannot be done ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"not": {"type": "string"}}}}, "field.properties.a.not"),
        ({"type": "banana"}, "field.type"),
        ({"properties": {"a": {"items": {"type": "banana"}}}}, "field.properties.a.items.type"),
        ({"anyOf": [{"type": "null"}, {"type": "string", "format": "zip"}]},
         "field.anyOf[1].format"),
        ({"properties": {"a": {"type": "string", "pattern": "a(?=b)"}}},
         "field.properties.a.pattern"),
        ({"properties": {"a": {"type": "string", "minLength": "x"}}},
         "field.properties.a.minLength"),
        ({"$ref": "#/$defs/missing"}, "field.$ref"),
        ({"$ref": "https://example.com/schema"}, "field.$ref"),
        ({"$defs": {"b": {"uniqueItems": True}, "a": {"items": {"$ref": "#/$defs/b"}}},
          "$ref": "#/$defs/a"}, "field.$defs.b.uniqueItems"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2, "type": "string"}]}, "field.oneOf"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "field"),
        ({"enum": "ab"}, "field.enum"),
        ({"if": {"type": "string"}, "then": {}}, "field.if"),
        ({"$ref": "#"}, "field"),
    ],
)  # fmt: skip
def test_json_02_json_07_what_cannot_be_done_is_named_with_its_path(
    engine: LocalEngine, schema: dict[str, Any], path: str
) -> None:
    error = refusal(engine, "json_schema", schema)
    assert (error.param, error.message.split(":")[0]) == (path, path)
    assert len(error.message) < 400 and "\n" not in error.message


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "(a"),
        ("regex", r"a\b"),
        ("regex", "x" * 100_000),
        ("regex", 3),
        ("choice", ()),
        ("choice", ("a", 3)),
        ("choice", ("a" * 100_000,)),
        ("lark", "no start here"),
        ("lark", 'start: "a" <no_such_token>'),
        ("lark", '{"type": "object"}'),
        ("lark", ""),
        ("lark", "start: start"),
        ("gbnf", "root ::= ("),
        ("gbnf", 'other ::= "a"'),
        ("gbnf", "root ::= " + "(" * 20_000),
        ("regex", "half a pair: \ud800"),
        ("json_schema", ["no", "object"]),
        ("json_schema", {"description": "x" * 2_000_000}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_json_07_a_grammar_with_a_fault_is_refused(
    engine: LocalEngine, kind: str, value: Any
) -> None:
    error = refusal(engine, kind, value)
    assert error.param is not None and error.param.startswith("field")
    assert len(error.message) < 400 and "\n" not in error.message


def nested_rules(n: int) -> str:
    inside = '("x" | ' * 28
    rules = "".join(f"a{i}: {inside}a{i + 1}{')' * 28}\n" for i in range(n))
    return f'start: a0\n{rules}a{n}: "a"'


def deep_array(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("lark", nested_rules(500)),
        ("lark", "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(5000)) + 'a5000: "a"'),
        ("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
        ("json_schema", deep_array(400)),
        ("json_schema", {"allOf": [{"anyOf": [{"properties": {f"k{i}_{j}": {"type": "string"}}}
                                              for j in range(8)]} for i in range(8)]}),
        ("json_schema", {"type": "object", "properties": {f"k{i}": {"type": "string"}
                                                          for i in range(12_000)}}),
    ],
    ids=["alternatives", "rules", "brackets", "deep", "product", "wide"],
)  # fmt: skip
def test_grammars_that_explode_are_refused(engine: LocalEngine, kind: str, value: Any) -> None:
    assert refusal(engine, kind, value).param == "field"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "((a{1,1000}){1,1000}){1,1000}"),
        ("regex", "[^x]*a.{200}"),
        ("json_schema", {"$defs": {
            f"d{i}": {"properties": {"a": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"},
                                                     {"type": "null"}]}}}
            for i in range(900)} | {"d900": {}}, "$ref": "#/$defs/d0"}),
        ("json_schema", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        ("lark", 'start: a\na: "x" | "y" | ("x" | "y") a'),
    ],
    ids=["bomb", "states", "long chain", "endless", "right-recursive"],
)  # fmt: skip
def test_grammars_that_could_explode_cost_only_their_own_request(
    engine: LocalEngine, kind: str, value: Any
) -> None:
    try:
        infer(engine, kind, value, max_tokens=30)
    except InvalidRequest as error:
        assert "complex" in error.message or error.param == "field"
    assert re.fullmatch("[a-z]", text_of(infer(engine, "regex", "[a-z]")))


LEAST = -(2**63)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"const": LEAST}, ".const"),  # endless recursion in native code
        ({"enum": ["a", LEAST]}, ".enum[1]"),
        ({"const": {"a": [LEAST]}}, ".const.a[0]"),
        ({"properties": {"const": {"const": LEAST + 1}}}, ".properties.const.const"),
        ({"type": "integer", "minimum": LEAST, "maximum": LEAST}, ".maximum"),
        ({"type": "integer", "minimum": -1e31, "maximum": -1e30}, ".maximum"),
        ({"anyOf": [{"type": "integer", "exclusiveMinimum": 2**70}]}, ".anyOf[0].exclusiveMinimum"),
        ({"const": 2**53 + 1}, ".const"),
        ({"const": 1e300}, ".const"),
    ],
)
def test_integers_that_are_not_exact_are_refused(
    engine: LocalEngine, schema: dict[str, Any], path: str
) -> None:
    refused = refusal(engine, "json_schema", schema)
    assert refused.param is not None and refused.param.endswith(path)
    assert "beyond" in refused.message
    for text in (json.dumps(schema), json.dumps(schema)[:-1] + ", }"):  # also if it is no JSON
        assert "beyond" in refusal(engine, "lark", f"start: %json {text}\n").message


def test_a_range_of_64_bits_is_narrowed(engine: LocalEngine) -> None:
    bounds = {"type": "integer", "minimum": LEAST, "maximum": 2**63 - 1}
    schema = {
        "type": "object",
        "properties": {"maximum": bounds},
        "required": ["maximum"],
        "additionalProperties": False,  # else the model may add some until its tokens end
    }
    text = text_of(infer(engine, "json_schema", schema, temperature=1.0, max_tokens=60))
    assert abs(json.loads(text)["maximum"]) <= 2**53


def test_a_grammar_with_a_dead_end_is_the_requests_fault(engine: LocalEngine) -> None:
    error = refusal(engine, "lark", 'start: /[a-z]{3}/ on\non: "x" on')
    assert error.param == "field"


def test_a_grammar_that_is_being_compiled_holds_nobody_up(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    compile_now = GrammarCompiler._compile

    def slowly(compiler: GrammarCompiler, *arguments: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return compile_now(compiler, *arguments)

    monkeypatch.setattr(GrammarCompiler, "_compile", slowly)
    waiting = threading.Thread(target=infer, args=(engine, "regex", "[a-z]"))
    waiting.start()
    try:
        assert begun.wait(60)
        assert engine.infer(request(chat("Hi"), max_tokens=4)).usage.completion_tokens > 0
    finally:
        may_end.set()
        waiting.join()


def test_several_prompts_are_checked_before_any_runs(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest):
        engine.validate(constrained("regex", "(a"))
    engine.validate(constrained("regex", "a"))


# -- special tokens, and grammars that begin later -------------------------------------------------


def feed(engine: LocalEngine, grammar: Any, *pieces: str | int) -> bool:
    """Whether a grammar takes the pieces, texts or token ids, and is complete then."""
    model = runtime_of(engine).model
    matcher = grammar.clone()
    for piece in pieces:
        tokens = [piece] if isinstance(piece, int) else model.tokenize(
            piece, add_special=False, parse_special=False
        )  # fmt: skip
        if matcher.n_possible(tokens) < len(tokens):
            return False
        for token in tokens:
            matcher.accept(token)
    return bool(matcher.native.is_accepting())


def test_lark_can_name_special_tokens(engine: LocalEngine) -> None:
    model = runtime_of(engine).model
    start, end = (
        model.tokenize(t, add_special=False, parse_special=True)[0]
        for t in ("<|im_start|>", "<|im_end|>")
    )
    assert mark_in_lark(model, "<|im_start|>") == f"<[{start}]>"
    assert mark_in_lark(model, "<tool_call>") == '"<tool_call>"'
    for mark in ("<|im_start|>", f"<[{start}]>"):
        text = f'start: "a" {mark} "b"'
        grammar = compiler_of(engine).compile(Constraint(kind="lark", value=text))
        assert feed(engine, grammar, "a", start, "b")
        assert not feed(engine, grammar, "a<|im_start|>b"), "the same characters as text"
    # A token that ends the model's turn ends the sequence, too.
    answer = infer(engine, "lark", f'start: "Hello" <[{end}]>')
    assert (text_of(answer), answer.choices[0].finish_reason) == ("Hello", FinishReason.STOP)
    free = compiler_of(engine).compile(Constraint(kind="regex", value="(?s:.*)"))
    assert not feed(engine, free, start), "free text has no special tokens"


@pytest.mark.parametrize("mark", ["</think>", "<|im_start|>", "##"])
@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}},
                         "required": ["a"], "additionalProperties": False}, '{"a":1}', "{ }"),
        ("choice", ("yes", "no"), "no", "maybe"),
        ("gbnf", 'root ::= "a"+', "aaa", "b"),
    ],
)  # fmt: skip
def test_a_grammar_can_be_part_of_another(
    engine: LocalEngine, mark: str, kind: Any, value: Any, good: str, bad: str
) -> None:
    model = runtime_of(engine).model
    written = mark_in_lark(model, mark)
    frame = f"start: TEXT {written} @answer\nTEXT: /(?s:.*)/\n"
    if written.startswith('"'):
        frame = f"start: text @answer\ntext[suffix={written}]: /(?s:.*)/\n"
    form = AnswerForm(Constraint(kind=kind, value=value), frame)
    grammar = compiler_of(engine).compile_form(form)
    tokens = model.tokenize(mark, add_special=False, parse_special=True)
    mark_piece: str | int = tokens[0] if mark == "<|im_start|>" else mark
    assert feed(engine, grammar, "I think\n\n, so it is: ", mark_piece, good)
    assert feed(engine, grammar, mark_piece, good)
    assert not feed(engine, grammar, "Well", mark_piece, bad)
    assert not feed(engine, grammar, "Well, ", good), "not complete without the mark"


# -- other models, and the end ------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_llama, write_mamba])
def test_a_byte_vocabulary_and_a_recurrent_model(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "tiny.gguf"
    write(path)
    engine = LocalEngine(
        [ModelSpec(id="tiny", path=str(path))], LlmOptions(ctx_size=256, slots=2, threads=1)
    )
    engine.load()
    try:
        for _ in range(2):
            answer = engine.infer(
                InferenceRequest(
                    id="1", model_id="", prompt="abc",
                    sampling_params=request("", max_tokens=80, temperature=1.0).sampling_params,
                    constraint=Constraint(
                        kind="regex", value="Name: [A-Z][a-z]{3}, and the é is forced: (x|yz)"
                    ),
                )
            )  # fmt: skip
            assert re.fullmatch("Name: [A-Z][a-z]{3}, and the é is forced: (x|yz)", text_of(answer))
        runtime_of(engine).runner.check()
    finally:
        engine.close()


def test_gemmas_vocabulary(gemma_engine: LocalEngine) -> None:
    made = constrained("json_schema", CUSTOMER)
    answer = gemma_engine.infer(
        InferenceRequest(
            id=made.id, model_id="", prompt="A record as JSON: ", constraint=made.constraint,
            sampling_params=made.sampling_params,
        )
    )  # fmt: skip
    jsonschema_rs.validate(CUSTOMER, json.loads(text_of(answer)))


def test_closing_waits_for_the_tokenizer_and_refuses_afterwards() -> None:
    model = LlamaModel(str(SMOLLM2))
    compiler = GrammarCompiler(model, "test")
    compiler.close()  # while the tokenizer is being built
    model.close()
    with pytest.raises(Unavailable):
        compiler.compile(Constraint(kind="regex", value="a"))
    assert not [t for t in threading.enumerate() if t.name == "grammar-test"]
