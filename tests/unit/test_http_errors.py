"""Typed errors become OpenAI's error shape, with the right status and headers."""

from __future__ import annotations

import inspect
import logging

import pytest

from ferrum_local import errors
from ferrum_local.http.app import create_app
from ferrum_local.http.errors import ApiError, as_api_error, error_body, retry_after
from tests.fakes import ScriptedEngine

CASES = [
    (errors.InvalidRequest("x", param="a.b"), 400, "invalid_request_error", None),
    (errors.Unsupported("x"), 400, "invalid_request_error", "unsupported_parameter"),
    (
        errors.ContextOverflow(n_prompt_tokens=9, n_ctx=8),
        400,
        "invalid_request_error",
        "context_length_exceeded",
    ),
    (
        errors.TextTooLong("input[0]", "the text", n_tokens=9, n_ctx=8, model_id="m"),
        400,
        "invalid_request_error",
        "context_length_exceeded",
    ),
    (errors.ModelNotFound("x"), 404, "not_found_error", "model_not_found"),
    (errors.QueueFull("x", retry_after_s=0.2), 429, "rate_limit_error", "queue_full"),
    (errors.Cancelled("x"), 499, "invalid_request_error", "cancelled"),
    (errors.GenerationFailed("x"), 500, "server_error", "generation_failed"),
    (errors.ModelLoadError("x"), 500, "server_error", "model_load_failed"),
    (
        errors.Unavailable("x", retry_after_s=3, code="loading"),
        503,
        "service_unavailable_error",
        "loading",
    ),
    (errors.ModelUnusable("x"), 400, "invalid_request_error", "model_load_failed"),
    (errors.InvalidAudio("x"), 400, "invalid_request_error", "invalid_audio"),
    (errors.AudioTooLong(60), 413, "invalid_request_error", "audio_too_long"),
    (errors.DeadlineExceeded("x"), 504, "server_error", "deadline_exceeded"),
]


@pytest.mark.parametrize("error, status, type_, code", CASES)
def test_each_engine_error_has_a_status_and_a_type(
    error: errors.FerrumError, status: int, type_: str, code: str | None
) -> None:
    sent = as_api_error(error)
    assert (sent.status, sent.type, sent.code) == (status, type_, code)
    body = error_body(error).error
    assert (body.message, body.param) == (error.message, error.param)


def test_no_engine_error_is_missing_from_the_cases() -> None:
    defined = {
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.FerrumError)
    } - {errors.FerrumError, errors.ConfigError}  # the latter comes before there is a server
    assert defined == {type(case[0]) for case in CASES}


def test_retry_after_is_whole_seconds_and_never_zero() -> None:
    assert [retry_after(s) for s in (0, 0.01, 1, 1.2, 30)] == ["1", "1", "1", "2", "30"]


def test_busy_and_unavailable_replies_say_when_to_retry() -> None:
    app = create_app(ScriptedEngine())

    @app.get("/busy")
    def busy() -> str:
        raise errors.QueueFull("Too many requests wait.", retry_after_s=1.5)

    response = app.test_client().get("/busy")
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "2"
    assert response.json == {
        "error": {
            "message": "Too many requests wait.",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
    }


def test_an_unexpected_error_tells_the_log_all_and_the_client_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = create_app(ScriptedEngine())

    @app.get("/broken")
    def broken() -> str:
        raise RuntimeError("the secret path /etc/shadow")

    with caplog.at_level(logging.ERROR, logger="ferrum_local.http.errors"):
        response = app.test_client().get("/broken", headers={"X-Request-Id": "abc-1"})
    assert response.status_code == 500
    assert response.get_json()["error"]["type"] == "server_error"
    assert "secret" not in response.text and "Traceback" not in response.text
    assert response.headers["X-Request-Id"] == "abc-1"
    assert "abc-1" in caplog.text and "the secret path" in caplog.text


def test_unknown_routes_and_wrong_methods_have_the_same_shape() -> None:
    client = create_app(ScriptedEngine()).test_client()

    missing = client.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.get_json()["error"]["type"] == "not_found_error"
    assert "GET /v1/nothing" in missing.get_json()["error"]["message"]

    wrong = client.delete("/v1/models")
    assert wrong.status_code == 405
    assert wrong.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert wrong.get_json()["error"]["type"] == "invalid_request_error"


def test_an_api_error_carries_its_own_headers() -> None:
    app = create_app(ScriptedEngine())

    @app.get("/teapot")
    def teapot() -> str:
        raise ApiError("no", status=418, param="pot", headers={"X-Pot": "tea"})

    response = app.test_client().get("/teapot")
    assert (response.status_code, response.headers["X-Pot"]) == (418, "tea")
    assert response.get_json()["error"]["param"] == "pot"


def test_a_route_without_v1_is_told_where_it_is() -> None:
    client = create_app(ScriptedEngine()).test_client()
    reply = client.post("/chat/completions", json={})
    assert reply.status_code == 404
    assert "did you mean /v1/chat/completions?" in reply.json["error"]["message"]
    assert "did you mean" not in client.get("/chat/completions").json["error"]["message"]
    assert "did you mean" not in client.get("/nowhere").json["error"]["message"]


def test_a_wrong_method_is_told_the_useful_ones() -> None:
    reply = create_app(ScriptedEngine()).test_client().get("/v1/chat/completions")
    assert reply.status_code == 405
    assert reply.json["error"]["message"].endswith("it takes POST.")
    assert "OPTIONS" in reply.headers["Allow"]


def test_the_access_line_names_the_error_and_its_field(caplog: pytest.LogCaptureFixture) -> None:
    client = create_app(ScriptedEngine()).test_client()
    with caplog.at_level(logging.INFO, logger="ferrum_local.access"):
        bad = {"messages": [{"role": "user", "content": "hi"}], "temperature": 9}
        client.post("/v1/chat/completions", json=bad, buffered=True)
        client.get("/nowhere", buffered=True)
    first, second = (r.getMessage() for r in caplog.records if r.name == "ferrum_local.access")
    assert first.endswith("error=invalid_request_error(temperature)")
    assert second.endswith("error=unknown_route")
