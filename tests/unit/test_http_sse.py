"""Event framing, and the ways in which a stream may end."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import msgspec
import pytest
from flask import Flask, Response

from ferrum_local.errors import GenerationFailed
from ferrum_local.http.app import create_app
from ferrum_local.http.sse import DONE, event, stream_response
from tests.fakes import ScriptedEngine


class Piece(msgspec.Struct):
    text: str
    score: float = 1.0


def app_that_streams(events: Iterator[bytes], ended: list[str]) -> Flask:
    app = create_app(ScriptedEngine())

    @app.post("/stream")
    def stream() -> Response:
        return stream_response(events, on_close=lambda: ended.append("closed"))

    return app


def test_an_event_is_one_line_of_strict_json() -> None:
    assert event(Piece("a\nb")) == b'data: {"text":"a\\nb","score":1.0}\n\n'
    assert event(Piece("", float("nan"))) == b'data: {"text":"","score":null}\n\n'


def test_a_stream_has_the_headers_that_proxies_and_clients_need() -> None:
    ended: list[str] = []
    app = app_that_streams(iter([event({"n": 1}), DONE]), ended)
    response = app.test_client().post("/stream")
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.data == b'data: {"n":1}\n\ndata: [DONE]\n\n'
    response.close()
    assert ended == ["closed"]


@pytest.mark.parametrize(
    "error, message",
    [
        (GenerationFailed("The model broke."), "The model broke."),
        (RuntimeError("secret"), "The server hit an internal error. Its log has the details."),
    ],
)
def test_str_14_an_error_after_the_first_byte_is_one_event_and_the_end(
    error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def events() -> Iterator[bytes]:
        yield event({"n": 1})
        raise error

    ended: list[str] = []
    app = app_that_streams(events(), ended)
    with caplog.at_level(logging.ERROR, logger="ferrum_local.http.sse"):
        response = app.test_client().post("/stream", headers={"X-Request-Id": "req-7"})
        *_, last, rest = response.data.split(b"\n\n")
    assert rest == b""
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == message
    assert b"[DONE]" not in response.data
    assert "req-7" in caplog.text
    response.close()
    assert ended == ["closed"]


def test_closing_the_reply_closes_the_generator() -> None:
    ended: list[str] = []

    def events() -> Iterator[bytes]:
        try:
            while True:
                yield event({})
        finally:
            ended.append("generator")

    app = app_that_streams(events(), ended)
    response = app.test_client().post("/stream", buffered=False)
    next(iter(response.response))
    response.close()
    assert ended == ["generator", "closed"]


def test_a_reply_that_never_started_still_gives_back_what_it_held() -> None:
    ended: list[str] = []
    app = app_that_streams((event({}) for _ in range(2)), ended)
    with app.test_client() as client:
        response = client.post("/stream", buffered=False)
        response.close()
    assert ended == ["closed"]
