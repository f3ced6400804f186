"""API keys."""

from __future__ import annotations

import pytest

from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from tests.fakes import ScriptedEngine

CONFIG = HttpConfig(api_keys=("first-key", "zweiter-schlüssel"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer   first-key "},
        {"api-key": "first-key"},
        {"X-API-Key": "first-key"},
        {"Authorization": "Bearer " + "zweiter-schlüssel".encode().decode("latin-1")},
    ],
)
def test_a_right_key_opens(headers: dict[str, str]) -> None:
    client = create_app(ScriptedEngine(), CONFIG).test_client()
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers, code",
    [
        ({}, "missing_api_key"),
        ({"Authorization": "Bearer "}, "missing_api_key"),
        ({"Authorization": "Basic first-key"}, "missing_api_key"),
        ({"Authorization": "Bearer first-ke"}, "invalid_api_key"),
        ({"Authorization": "Bearer first-key2"}, "invalid_api_key"),
        ({"api-key": "\xff\xfe"}, "invalid_api_key"),
    ],
)
def test_a_wrong_or_missing_key_does_not(headers: dict[str, str], code: str) -> None:
    client = create_app(ScriptedEngine(), CONFIG).test_client()
    for path in ("/v1/models", "/metrics", "/openapi.json", "/unknown"):
        response = client.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert response.get_json()["error"]["type"] == "authentication_error"
        assert response.get_json()["error"]["code"] == code
        assert "first-key" not in response.text


def test_probes_and_preflights_need_no_key() -> None:
    client = create_app(ScriptedEngine(), CONFIG).test_client()
    for path in ("/", "/health", "/health/live"):
        assert client.get(path).status_code == 200
    preflight = client.options(
        "/v1/chat/completions",
        headers={"Origin": "tauri://localhost", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.status_code == 204


def test_without_configured_keys_none_is_asked_for() -> None:
    client = create_app(ScriptedEngine()).test_client()
    assert client.get("/v1/models").status_code == 200
    assert client.get("/v1/models", headers={"Authorization": "Bearer x"}).status_code == 200
