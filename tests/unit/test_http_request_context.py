"""Request ids and the access line."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest
from flask import Response

from ferrum_local.errors import Unavailable
from ferrum_local.http.app import create_app
from ferrum_local.http.request_context import current_record
from ferrum_local.http.sse import event, stream_response
from tests.fakes import ScriptedEngine

ACCESS = "ferrum_local.access"
PAUSE_S = 0.05


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == ACCESS]


def test_a_sane_id_is_kept_and_any_other_replaced() -> None:
    client = create_app(ScriptedEngine()).test_client()
    for sane in ("abc", "A1.b_c:d-e", "x" * 128):
        assert client.get("/", headers={"X-Request-Id": sane}).headers["X-Request-Id"] == sane
    for odd in ("", "x" * 129, "a b", "a\tb", "é", '{"a":1}'):
        given = client.get("/", headers={"X-Request-Id": odd}).headers["X-Request-Id"]
        assert given.startswith("req_") and given != odd
    assert client.get("/").headers["X-Request-Id"] != client.get("/").headers["X-Request-Id"]


def test_every_reply_says_how_long_it_took() -> None:
    app = create_app(ScriptedEngine())

    @app.get("/whole")
    def whole() -> str:
        time.sleep(PAUSE_S)
        return "done"

    @app.get("/streamed")
    def streamed() -> Response:
        time.sleep(PAUSE_S)
        return stream_response(iter([event({})]))

    @app.get("/refused")
    def refused() -> str:
        time.sleep(PAUSE_S)
        raise Unavailable("Not now.", retry_after_s=1)

    client = app.test_client()
    for path, status in (("/whole", 200), ("/streamed", 200), ("/refused", 503)):
        asked_s = time.monotonic()
        with client.get(path) as reply:
            waited_ms = 1000 * (time.monotonic() - asked_s)
            assert reply.status_code == status
            took_ms = int(reply.headers["openai-processing-ms"])
            assert 1000 * PAUSE_S <= took_ms <= waited_ms + 1  # it is rounded
    for path in ("/", "/v1/models", "/unknown"):
        assert client.get(path).headers["openai-processing-ms"].isdecimal()


def test_one_access_line_per_request_with_what_the_route_knew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = create_app(ScriptedEngine())

    @app.post("/generate")
    def generate() -> Response:
        record = current_record()

        def events() -> Iterator[bytes]:
            yield event({})
            record.model = "tiny"
            record.prompt_tokens, record.cached_tokens, record.generated_tokens = 12, 4, 30
            record.queue_ms, record.ttft_ms, record.tokens_per_s = 1.23, 45.67, 99.9

        return stream_response(events())

    with caplog.at_level(logging.DEBUG, logger=ACCESS):
        app.test_client().post("/generate", headers={"X-Request-Id": "id-1"}, buffered=True)
    (line,) = lines(caplog)
    text = line.getMessage()
    assert text.startswith("id-1 POST /generate 200 ")
    assert text.endswith(
        "model=tiny prompt=12 cached=4 generated=30 queue_ms=1.2 ttft_ms=45.7 tok/s=99.9"
    )
    fields = vars(line)
    assert (fields["request_id"], fields["route"], fields["status"]) == ("id-1", "/generate", 200)
    assert (fields["generated_tokens"], fields["client_left"]) == (30, False)
    assert fields["bytes_sent"] == len(event({}))


def test_a_client_that_left_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(ScriptedEngine())

    @app.post("/generate")
    def generate() -> Response:
        return stream_response(event({}) for _ in range(100))

    with caplog.at_level(logging.DEBUG, logger=ACCESS):
        response = app.test_client().post("/generate", buffered=False)
        next(iter(response.response))
        assert not lines(caplog)
        response.close()
    (line,) = lines(caplog)
    assert line.getMessage().endswith("client_left")
    assert vars(line)["client_left"] is True


def test_a_path_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    client = create_app(ScriptedEngine()).test_client()
    with caplog.at_level(logging.DEBUG, logger=ACCESS):
        client.get("/a%0Areq_fake%20GET%20/admin%20200/%C3%BC/" + "x" * 1000).close()
    (line,) = lines(caplog)
    assert "\n" not in line.getMessage() and "/a%0Areq_fake%20GET" in line.getMessage()
    assert len(line.getMessage()) < 500
    assert vars(line)["route"] == "unmatched"


def test_probes_are_quiet(caplog: pytest.LogCaptureFixture) -> None:
    client = create_app(ScriptedEngine()).test_client()
    with caplog.at_level(logging.DEBUG, logger=ACCESS):
        for path in ("/health", "/health/live", "/metrics", "/"):
            client.get(path).close()
    assert [line.levelno for line in lines(caplog)] == [10, 10, 10, 20]
