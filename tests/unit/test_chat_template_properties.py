"""What holds for every conversation and every text."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum_local.llm.chat_template import CHATML, ChatTemplate
from ferrum_local.llm.message_fitting import (
    FITS,
    Dialect,
    arrange,
    marked,
    n_lost,
    normalise,
    short_id,
)
from tests.unit.chat_templates import chat_template, sample

CHATML_TEMPLATE = ChatTemplate(CHATML, bos_token="<s>", eos_token="</s>")
STRICT = {name: chat_template(sample(name)) for name in ("llama_2", "gemma", "mistral", "phi")}

JINJA_SYNTAX = st.sampled_from(
    [
        "{{ 7 * 7 }}",
        "{% raw %}",
        "{# gone #}",
        "{{ raise_exception('x') }}",
        "{%",
        "}}",
        "%s",
        "{0}",
    ]
)
texts = st.lists(st.one_of(st.text(), JINJA_SYNTAX), min_size=1).map("".join)
roles = st.sampled_from(["system", "user", "assistant"])
plain_messages = st.lists(
    st.fixed_dictionaries({"role": roles, "content": texts}), min_size=1, max_size=8
)


@st.composite
def tool_turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls and their results."""
    ids = draw(st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True))
    call = {"name": "f", "arguments": draw(st.sampled_from(["", "{}", '{"a": 1}', "[1]", "{"]))}
    calls = [{"id": id_, "type": "function", "function": call} for id_ in ids]
    content = draw(st.one_of(st.none(), st.text()))
    return [
        {"role": "assistant", "content": content, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id_, "content": draw(texts)} for id_ in ids),
    ]


conversations = st.lists(st.one_of(plain_messages, tool_turns()), min_size=1, max_size=4).map(
    lambda turns: [message for turn in turns for message in turn]
)


@settings(deadline=None)
@given(texts)
def test_a_users_text_appears_once_and_is_never_evaluated(text: str) -> None:
    marked_text = f"\N{LEFT CORNER BRACKET}{text}\N{RIGHT CORNER BRACKET}"
    for template in (CHATML_TEMPLATE, *STRICT.values()):
        prompt = template.render([{"role": "user", "content": marked_text}])
        assert prompt.count(marked_text) == 1


@settings(deadline=None)
@given(plain_messages)
def test_chatml_of_a_prefix_is_a_prefix(messages: list[dict[str, Any]]) -> None:
    user = {"role": "user", "content": "next"}
    answered = [*messages, user, {"role": "assistant", "content": "sure"}, user]
    longer = CHATML_TEMPLATE.render(answered)
    assert longer.startswith(CHATML_TEMPLATE.render([*messages, user]))
    assert longer.startswith(CHATML_TEMPLATE.render(answered[:-1]))


@settings(deadline=None)
@given(conversations)
def test_chat_13_chat_14_strict_templates_take_any_order_and_lose_nothing(
    messages: list[dict[str, Any]],
) -> None:
    sample_messages, marks = marked(normalise(messages))
    for name, template in STRICT.items():
        prompt = template.render(sample_messages)
        assert n_lost(marks, prompt) == 0, name


@settings(deadline=None)
@given(conversations, st.sampled_from(FITS))
def test_every_arrangement_keeps_all_text_and_its_order(
    messages: list[dict[str, Any]], fit: Any
) -> None:
    conversation, marks = marked(normalise(messages))
    before = repr(conversation)
    arranged = arrange(conversation, fit, Dialect())
    assert repr(conversation) == before
    assert n_lost(marks, repr(arranged)) == 0
    others = [m["content"] for m in conversation if m["role"] == "user"]
    positions = [repr(arranged).index(content) for content in others if content]
    assert positions == sorted(positions)


@settings(deadline=None)
@given(st.text(), st.text())
def test_tool_09_short_ids_are_nine_letters_and_digits_and_stable(a: str, b: str) -> None:
    assert len(short_id(a)) == 9
    assert short_id(a).isascii() and short_id(a).isalnum()
    assert short_id(short_id(a)) == short_id(a)
    assert (short_id(a) == short_id(b)) == (a == b or a == short_id(b) or b == short_id(a))
