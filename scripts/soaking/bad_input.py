"""Requests that no client should send, and how the server may answer each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from soaking.http_client import HOST, encode_request

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_HELLO = [{"role": "user", "content": "Hello"}]


class BadRequest(NamedTuple):
    """A request that must get one of ``statuses``."""

    name: str
    request: bytes
    statuses: tuple[int, ...] = (400,)


def _chat(name: str, *statuses: int, **fields: Any) -> BadRequest:
    body = {"messages": _HELLO, "max_tokens": 2, **fields}
    return BadRequest(name, encode_request("POST", CHAT, body), statuses or (400,))


def _raw(
    name: str, body: bytes, *statuses: int, headers: Mapping[str, str] | None = None
) -> BadRequest:
    request = encode_request("POST", CHAT, body, headers)
    return BadRequest(name, request, statuses or (400,))


def _completion(name: str, **fields: Any) -> BadRequest:
    body = {"prompt": "Hello", "max_tokens": 2, **fields}
    return BadRequest(name, encode_request("POST", COMPLETIONS, body))


def _image(url: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


_NESTED = json.dumps({"messages": _HELLO}).encode()[:-1] + b', "metadata": ' + b"[" * 50_000

BAD_REQUESTS: tuple[BadRequest, ...] = (
    _raw("an empty body", b""),
    _raw("null", b"null"),
    _raw("a list", b"[]"),
    _raw("half an object", b'{"messages": ['),
    _raw("a stray comma", b'{"messages": [{"role": "user", "content": "a"},]}'),
    _raw("bytes that are not UTF-8", b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'),
    _raw("deep nesting", _NESTED),
    _raw("another type", b"messages=hello", 400, 415, headers={"Content-Type": "text/plain"}),
    _raw("NaN", b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}'),
    _raw("a huge number", b'{"messages": [{"role": "user", "content": "a"}], "seed": 1e400}'),
    _chat("no messages", messages=[]),
    _chat("an unknown role", messages=[{"role": "banana", "content": "a"}]),
    _chat("no role", messages=[{"content": "a"}]),
    _chat("messages that are text", messages="Hello"),
    _chat("a number as content", messages=[{"role": "user", "content": 5}]),
    _chat("an image for a text model", messages=_image("data:image/png;base64,AAAA")),
    _chat("a temperature out of range", temperature=5),
    _chat("a temperature that is text", temperature="hot"),
    _chat("a negative max_tokens", max_tokens=-7),
    _chat("a broken max_tokens", max_tokens=1.5),
    _chat("max_tokens as text", max_tokens="10"),
    _chat("n 0", n=0),
    _chat("n 99", n=99),
    _chat("too many top_logprobs", logprobs=True, top_logprobs=50),
    _chat("a stop that is a number", stop=7),
    _chat("a logit_bias key that is no token", logit_bias={"abc": 1}),
    _chat("a logit_bias outside the vocabulary", logit_bias={"99999999": 1}),
    _chat("an unknown field", banana=1),
    _chat("an unknown model", 404, model="gpt-99"),
    _chat("a tool without a name", tools=[{"type": "function", "function": {}}]),
    _chat("stream options without a stream", stream_options={"include_usage": True}),
    _completion("token ids outside the vocabulary", prompt=[1, 99_999_999]),
    _completion("a negative token id", prompt=[-1]),
    _completion("no prompts", prompt=[]),
    _completion("a suffix that the model cannot fill", suffix="the end"),
    BadRequest("an unknown route", encode_request("POST", "/v1/banana", {}), (404,)),
    BadRequest("another method", encode_request("PUT", CHAT, {}), (405,)),
    BadRequest("GET on a POST route", encode_request("GET", CHAT), (405,)),
    BadRequest("an id that does not run", encode_request("DELETE", "/v1/requests/none"), (404,)),
    BadRequest(
        "an unknown Host",
        encode_request("GET", "/health", headers={"Host": "evil.example"}),
        (403,),
    ),
)

# Not HTTP, or not all of it: the server may answer 4xx or only close the connection.
GARBAGE: tuple[bytes, ...] = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS hello
    b"HELLO\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n\r\n\r\n",
    f"POST {CHAT} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: -5\r\n\r\n".encode(),
    f"POST {CHAT} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: banana\r\n\r\n".encode(),
    f"POST {CHAT} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 500\r\n\r\n{{".encode(),
    f"POST {CHAT} HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n".encode(),
    f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nX-Long: {'a' * 100_000}\r\n\r\n".encode(),
    f"GET /{'a' * 50_000} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(),
)
