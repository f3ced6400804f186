"""What the template environment offers, and that a hostile template can do no harm."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from ferrum_local.errors import InvalidRequest
from ferrum_local.llm.chat_template import ChatTemplate
from ferrum_local.llm.template_budget import MAX_STEPS, Budget, BudgetExceeded
from ferrum_local.llm.template_environment import (
    SandboxedTemplate,
    TemplateRefused,
    TemplateUnusable,
)


def render(source: str, variables: Mapping[str, Any] = {}) -> str:
    return SandboxedTemplate(source).render(
        variables, now=lambda: datetime(2024, 7, 26), budget=Budget()
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  a\n{% endif %}\n", "  a\n"),
        ("  {% if true %}\na{% endif %}", "a"),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{% for x in [] %}a{% else %}none{% endfor %}", "none"),
        ("{% for x in 'ab' %}{{ loop.index }}/{{ loop.length }} {% endfor %}", "1/2 2/2 "),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "1,3"),
        (
            "{% for x in [[1], [2]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
            "12",
        ),
        ("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "2"),
        ("{{ ' a '.strip() + 'b'.upper() + 'a-b'.split('-')[1] }}", "aBb"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ 'a' ~ 1 ~ none ~ undefined_name }}", "a1None"),
        ("{{ '%s-%d' % ('a', 2) }}{{ '{}{x}'.format(1, x=2) }}", "a-212"),
        ("{{ ['a', 'b'] | join(', ') }}{{ ', '.join(['c', 'd']) }}", "a, bc, d"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'aXa'.replace('X', '-') }}{{ 'aXa' | replace('X', '+') }}", "a-aa+a"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}", "<1>"),
        ("{% set x %}a{% endset %}{{ x }}", "a"),
        ("{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x }}", "a"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{% if strftime_now is defined %}yes{% endif %}", "yes"),
        ("{{ never_set }}", ""),
        ("{{ '<b>' }}", "<b>"),
        ("{{ [1, 'a'] }}", "[1, 'a']"),
    ],
)
def test_what_templates_rely_on(source: str, expected: str) -> None:
    assert render(source) == expected


@pytest.mark.parametrize(
    ("options", "dump_options"),
    [
        ("", {}),
        ("(indent=2)", {"indent": 2}),
        ("(ensure_ascii=True)", {"ensure_ascii": True}),
        ("(sort_keys=True)", {"sort_keys": True}),
        ("(separators=(',', ':'))", {"separators": (",", ":")}),
    ],
)
def test_tojson_is_json_dumps(options: str, dump_options: dict[str, Any]) -> None:
    value = {"b": "<ü&'\">", "a": [1, None, True]}
    expected = json.dumps(value, **{"ensure_ascii": False, **dump_options})
    assert render("{{ value | tojson" + options + " }}", {"value": value}) == expected


def test_refusals_tell_whether_the_template_meant_them() -> None:
    with pytest.raises(TemplateRefused, match="^not like this$") as meant:
        render("{{ raise_exception('not like this') }}")
    assert meant.value.deliberate
    with pytest.raises(TemplateRefused, match="no attribute 'nope'") as stumbled:
        render("{{ 'a'.nope() }}")
    assert not stumbled.value.deliberate


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'].mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ('' | attr('__class__')).mro() }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ strftime_now.__globals__.keys() }}",
        "{{ [].append(1) }}",
        "{{ messages.pop() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ (5).to_bytes(4, 'big') }}",
    ],
)
def test_templates_reach_neither_python_nor_their_input(source: str) -> None:
    messages = [1]
    with pytest.raises((TemplateRefused, TemplateUnusable)):
        render(source, {"messages": messages})
    assert messages == [1]


HOSTILE = {
    "nested loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "loops without a body": (
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "calls that double": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}"
    ),
    "text that doubles": (
        "{% set ns = namespace(x='aaaaaaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "text that doubles by ~": (
        "{% set ns = namespace(x='aaaaaaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    ),
    "text that doubles in a block": (
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}"
    ),
    "a list that doubles": (
        "{% set ns = namespace(x=[1]) %}"
        "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "a list in itself, written out": (
        "{% set ns = namespace(x=['a']) %}"
        "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
    ),
    "a list in itself, as JSON": (
        "{% set ns = namespace(x=['a']) %}"
        "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}"
    ),
    "much output": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "many texts kept": (
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
        "{% set ns.x = ns.x + ['a' * 999999] %}{% endfor %}"
    ),
    "times": "{{ 'a' * 9999999999999 }}",
    "times a list": "{{ [1] * 9999999999999 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "power of powers": "{{ (9 ** 99) ** (9 ** 9) }}",
    "% width": "{{ '%9999999999999d' % 1 }}",
    "% width from an argument": "{{ '%*d' % (9999999999999, 1) }}",
    "format width": "{{ '{:>9999999999999}'.format('a') }}",
    "format width from an argument": "{{ '{:>{w}}'.format('a', w=9999999999999) }}",
    "format filter": "{{ '%9999999999999d' | format(1) }}",
    "ljust": "{{ 'a'.ljust(9999999999999) }}",
    "expandtabs": "{{ '\t\t\t'.expandtabs(9999999999999) }}",
    "replace with more": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replace filter": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "join with more": "{{ ('b' * 99999).join('a' * 99999) }}",
    "join filter": "{{ range(99999) | join('b' * 99999) }}",
    "center": "{{ 'a' | center(9999999999999) }}",
    "indent": "{{ ('\n' * 99999) | indent(99999, blank=true) }}",
    "JSON indent": "{{ [[[1]]] | tojson(indent=9999999999999) }}",
    "batch": "{{ [1] | batch(9999999999999, 'a') | list }}",
    "slice": "{{ [1] | slice(9999999999999) | list }}",
    "round": "{{ 1 | round(9999999999999, 'ceil') }}",
    "strftime": "{{ strftime_now('%9999999999999d') }}",
    "sum of lists": "{{ [[1], [2]] | sum(start=[]) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_are_stopped(source: str) -> None:
    with pytest.raises((BudgetExceeded, TemplateUnusable)):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(10 ** 9) }}",
        "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
        "{{ lipsum(n=99999) }}",
        "a" * 2**21,
    ],
    ids=["endless recursion", "range", "deep expression", "lipsum", "long source"],
)
def test_what_python_and_jinja_limit_themselves_is_a_plain_refusal(source: str) -> None:
    with pytest.raises((TemplateRefused, TemplateUnusable)):
        render(source)


def test_chat_15_hostile_template_falls_back_at_load(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(HOSTILE["nested loops"], bos_token="", eos_token="")
    assert template.fallback
    assert f"more than {MAX_STEPS} steps" in caplog.text


def test_template_that_turns_hostile_on_a_message_is_a_clear_400() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% if m.content == 'go' %}"
        + HOSTILE["nested loops"]
        + "{% endif %}{% endfor %}",
        bos_token="",
        eos_token="",
    )
    assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    with pytest.raises(InvalidRequest, match="was stopped") as caught:
        template.render([{"role": "user", "content": "go"}])
    assert caught.value.param == "messages"


def test_long_conversations_stay_within_bounds() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim ~ '\n' }}{% endfor %}",
        bos_token="",
        eos_token="",
    )
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": f"{i} " + "word " * 400} for i in range(1001)]
    assert len(template.render(messages)) > 2_000_000


def test_threads_render_at_once_without_mixing() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.content.split() %}{{ c }}{% endfor %}{% endfor %}",
        bos_token="",
        eos_token="",
    )
    start = threading.Barrier(8)

    def work(i: int) -> list[str]:
        start.wait()
        return [template.render([{"role": "user", "content": f"t{i} r{r}"}]) for r in range(20)]

    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(switch_interval_s)
    assert answers == [[f"t{i}r{r}" for r in range(20)] for i in range(8)]
