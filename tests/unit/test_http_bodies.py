"""Strict JSON: what is refused, and that the depth check agrees with a real parser."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.app import create_app
from ferrum_local.http.bodies import decode_json, nests_deeper_than, read_json_body
from ferrum_local.http.errors import ApiError
from tests.fakes import ScriptedEngine

json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)
tricky_text = st.text(alphabet='\\"[]{}a', max_size=12)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(json_values, st.integers(0, 6), st.booleans())
def test_depth_is_what_a_parser_finds(value: Any, limit: int, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert nests_deeper_than(limit, body) == (depth(value) > limit)


@given(st.lists(st.dictionaries(tricky_text, tricky_text, max_size=3), max_size=4))
def test_brackets_inside_strings_do_not_count(value: list[dict[str, str]]) -> None:
    body = json.dumps(value).encode()
    assert nests_deeper_than(1, body) == (depth(value) > 1)


@given(json_values)
def test_valid_json_decodes_to_the_same_value(value: Any) -> None:
    body = json.dumps(value).encode()
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return
    assert decode_json(body, max_depth=64) == value


def test_a_bomb_of_brackets_is_refused_without_recursion() -> None:
    for body in (b"[" * 100_000, b'{"a":' * 50_000, b"[" * 5000 + b"]" * 5000):
        with pytest.raises(ApiError, match="nests deeper than 64"):
            decode_json(body, max_depth=64)


@pytest.mark.parametrize(
    "body, why",
    [
        (b'{"a": 1,}', "trailing comma|character"),
        (b'{"a": NaN}', "character"),
        (b'{"a": Infinity}', "character"),
        (b'{"a": 1} x', "character"),
        (b'{"a": 1, "a": 2}', 'the key "a" comes twice'),
        (b'{"x": {"b": [{"a": 1, "a": 1}]}}', 'the key "a" comes twice'),
        (b'{"a": "\\ud800"}', "truncated"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"'a'", "character"),
        (b'{"a": 1e999}', "out of range"),
        (b"9" * 5000, "out of range"),
    ],
)
def test_json_09_what_is_not_strict_json_is_a_400(body: bytes, why: str) -> None:
    with pytest.raises(ApiError, match=f"not valid JSON: .*({why})") as refused:
        decode_json(body, max_depth=64)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_a_body_shorter_than_it_says_is_refused_where_the_server_does_not_notice() -> None:
    app = create_app(ScriptedEngine())

    @app.post("/echo")
    def echo() -> str:
        return str(read_json_body())

    response = app.test_client().post(
        "/echo",
        input_stream=io.BytesIO(b"{}"),
        content_type="application/json",
        # as gunicorn has it
        environ_overrides={"wsgi.input_terminated": True, "CONTENT_LENGTH": "100"},
    )
    assert response.status_code == 400
    assert response.get_json()["error"]["code"] == "body_broken_off"
