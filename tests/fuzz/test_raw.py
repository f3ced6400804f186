"""Hypothesis on the wire: bodies, headers and whole requests that no client should send."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.contract.conftest import worker_pids
from tests.contract.live import CHAT, COMPLETIONS, wait_idle
from tests.contract.raw import Reply, post

TIMEOUT_S = 120
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 1, "logprobs": 1, "stop": ["x"], "seed": 1},
}
ROUTES = st.sampled_from(sorted(VALID))
FIELDS = (
    "messages", "prompt", "model", "max_tokens", "max_completion_tokens", "n", "best_of", "stop",
    "stream", "stream_options", "temperature", "top_p", "top_k", "seed", "logprobs",
    "top_logprobs", "logit_bias", "echo", "suffix", "dry_sequence_breakers", "dry_multiplier",
    "min_tokens", "metadata", "user", "tools", "response_format", "chat_template_kwargs",
)  # fmt: skip
NUMBERS = (
    st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([2**31, 2**63, -(2**63), 10**40, 1e308, 0.1, -0.0])
)  # fmt: skip
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["", "\x00", "\ud800", "<|im_end|>", "{{ 7 * 7 }}", "🦙", "default", "user", "a" * 400]
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
bounded = settings(
    max_examples=60, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def server_survives(target: Any) -> Iterator[None]:
    """After everything below: the same process, nothing left running, a plain question works."""
    before = worker_pids(target)
    yield
    assert worker_pids(target) == before
    assert wait_idle(target).queued == 0
    for path, body in VALID.items():
        assert post(target.url, path, body).status == 200


def encoded(value: object) -> bytes:
    """JSON, with lone surrogates as escapes as a careless client sends them."""
    return json.dumps(value).encode()


def send(server: Any, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
    return post(server.url, path, body, headers)


def assert_sane(reply: Reply) -> None:
    """No fault of the server's, and errors in their one shape."""
    assert reply.status < 500, reply.body
    if reply.status >= 400:
        assert reply.headers["content-type"] == "application/json"
        assert reply.error["message"]
        assert reply.error["type"]
        assert "Traceback" not in reply.error["message"]
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.events[-1] == "[DONE]"
    else:
        assert reply.json["choices"]


@bounded
@given(path=ROUTES, body=st.binary(max_size=200))
def test_json_09_any_bytes_are_no_fault_of_the_server(target: Any, path: str, body: bytes) -> None:
    assert_sane(send(target, path, body))


@bounded
@given(path=ROUTES, value=VALUES)
def test_json_09_any_json_is_no_fault_of_the_server(target: Any, path: str, value: object) -> None:
    assert_sane(send(target, path, encoded(value)))


@settings(bounded, max_examples=120)
@given(path=ROUTES, name=st.sampled_from(FIELDS) | TEXTS, value=VALUES)
def test_any_value_in_any_field_of_a_valid_request(
    target: Any, path: str, name: str, value: object
) -> None:
    assert_sane(send(target, path, encoded({**VALID[path], name: value})))


@bounded
@given(name=st.sampled_from(["role", "content", "name", "tool_calls", "x"]), value=VALUES)
def test_any_value_in_any_field_of_a_message(target: Any, name: str, value: object) -> None:
    message = {"role": "user", "content": "Hi", name: value}
    assert_sane(send(target, CHAT, encoded({**VALID[CHAT], "messages": [message]})))


@settings(bounded, max_examples=120)
@given(path=ROUTES, data=st.data())
def test_a_valid_request_with_bytes_changed(target: Any, path: str, data: st.DataObject) -> None:
    body = bytearray(encoded(VALID[path]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        drop = data.draw(st.integers(0, 3))
        body[at : at + drop] = data.draw(st.binary(max_size=3))
    assert_sane(send(target, path, bytes(body)))


HEADER_VALUES = st.text(
    st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40
)
HEADERS = {
    "Content-Type": st.sampled_from(
        ["application/json", "application/json; charset=latin-1", "text/json", "", ";;;", "a/b/c"]
    ),
    "Accept": st.sampled_from(["text/event-stream", "*/*", "x", ""]),
    "Accept-Encoding": st.sampled_from(["gzip", "identity;q=0", "*;q=0"]),
    "Content-Encoding": st.sampled_from(["gzip", "identity", "br"]),
    "Authorization": st.sampled_from(["Bearer", "Bearer x", "Basic ===", "\xe9"]),
    "Expect": st.sampled_from(["100-continue", "200-ok"]),
    "Origin": st.sampled_from(["null", "https://evil.example", "tauri://localhost", "http://["]),
    "Range": st.just("bytes=0-1"),
    "Cookie": st.just("=;=;,"),
    "If-None-Match": st.just("*"),
    "X-Forwarded-For": st.just("1.2.3.4, ::1"),
    "X-HTTP-Method-Override": st.just("DELETE"),
    "X-Request-Id": st.sampled_from(["a" * 5000, "id 1", "\xff"]),
    "X-Ferrum-Priority": st.sampled_from(["realtime", "BACKGROUND", "urgent", ""]),
    "X-Ferrum-Timeout": st.sampled_from(["60", "1e3", "nan", "-inf", "0", "", "1_0", "١"]),
    "Upgrade": st.sampled_from(["websocket", "h2c"]),
    "Transfer-Encoding": st.sampled_from(["gzip", "identity", "chunked, chunked", "x"]),
    "Host": st.sampled_from(["localhost", "evil.example", "[", "", "localhost:99999", "a b"]),
    "Content-Length": st.sampled_from(["-1", "+5", "0x10", "1e1", "5, 5", "", "99999999999999"]),
}

UNSURE_LENGTH = {"Content-Length", "Transfer-Encoding", "Expect"}


def fits_in_a_header(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


@settings(bounded, max_examples=150)
@given(
    path=ROUTES,
    headers=st.lists(st.sampled_from(sorted(HEADERS)), min_size=1, max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries(
            {name: (HEADERS[name] | HEADER_VALUES).filter(fits_in_a_header) for name in names}
        )
    ),
)
@example(path=CHAT, headers={"X-Ferrum-Timeout": "1e400"})
@example(path=CHAT, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
def test_odd_headers(target: Any, path: str, headers: dict[str, str]) -> None:
    lines = [f"POST {path} HTTP/1.1"]
    body = encoded(VALID[path])
    sent = {
        "Host": "localhost", "Content-Type": "application/json",
        "Content-Length": str(len(body)), "Connection": "close", **headers,
    }  # fmt: skip
    lines += [f"{name}: {value}" for name, value in sent.items()]
    raw = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    # Only where the server may wait for more: a client that ends its side counts as gone.
    status, payload = exchange(target, raw, half_close=bool(UNSURE_LENGTH & set(headers)))
    # A time limit that passes is the client's own wish.
    assert status is None or status < 500 or (status == 504 and "X-Ferrum-Timeout" in headers)
    if status is not None and status >= 400:
        assert set(json.loads(payload)) == {"error"}


@settings(bounded, max_examples=100)
@given(
    raw=st.binary(max_size=120)
    | st.builds(
        lambda method, target_, version, rest: b" ".join([method, target_, version]) + rest,
        st.sampled_from([b"GET", b"POST", b"BREW", b"get", b"", b"\xff"]),
        st.sampled_from(
            [b"/", b"*", b"//", b"/v1/models/%00", b"/%ff%fe", b"/a b", b"http://[/", b"/..;/",
             b"/v1/models?%zz=%", b"/v1/models/" + b"x" * 300, b"?", b"/\x00"]
        ),
        st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/2", b"XTTP/1.1", b""]),
        st.sampled_from(
            [b"\r\n\r\n", b"\r\nHost: localhost\r\n\r\n", b"\n\n", b"\r\n: x\r\n\r\n",
             b"\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"\r\nA\r\n B\r\n\r\n", b"",
             b"\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n"]
        ),
    )
)  # fmt: skip
def test_what_is_hardly_http(target: Any, raw: bytes) -> None:
    status, _ = exchange(target, raw, half_close=True)
    assert status is None or status < 500 or status == 505


def exchange(server: Any, raw: bytes, *, half_close: bool) -> tuple[int | None, bytes]:
    """Send bytes, read one reply. No status: closed without one."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S) as client:
        client.sendall(raw)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        response = http.client.HTTPResponse(client)
        try:
            response.begin()
            return response.status, response.read()
        except (http.client.HTTPException, ConnectionError):
            return None, b""
