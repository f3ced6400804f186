from __future__ import annotations

import pytest

from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from tests.fakes import ScriptedEngine

KEY = {"Authorization": "Bearer key"}


@pytest.mark.parametrize(
    ("config", "headers", "status", "code"),
    [
        (HttpConfig(), {}, 403, "shutdown_needs_key"),
        (HttpConfig(), KEY, 403, "shutdown_needs_key"),
        (HttpConfig(api_keys=("key",)), {}, 401, "missing_api_key"),
        (HttpConfig(api_keys=("other",)), KEY, 401, "invalid_api_key"),
        (HttpConfig(api_keys=("key",)), {**KEY, "Host": "evil.example"}, 403, "host_not_allowed"),
        (
            HttpConfig(api_keys=("key",)),
            {**KEY, "Origin": "https://evil.example"},
            403,
            "origin_not_allowed",
        ),
        (HttpConfig(owner_only=True, api_keys=("key",)), {}, 401, "missing_api_key"),
    ],
)
def test_shutdown_is_refused(
    config: HttpConfig, headers: dict[str, str], status: int, code: str
) -> None:
    asked: list[bool] = []
    app = create_app(ScriptedEngine(), config, on_shutdown=lambda: asked.append(True))
    reply = app.test_client().post("/shutdown", headers=headers)
    assert (reply.status_code, reply.get_json()["error"]["code"]) == (status, code)
    assert asked == []


@pytest.mark.parametrize("config", [HttpConfig(api_keys=("key",)), HttpConfig(owner_only=True)])
def test_shutdown_with_a_key_or_where_only_the_owner_can_connect(config: HttpConfig) -> None:
    asked: list[bool] = []
    app = create_app(ScriptedEngine(), config, on_shutdown=lambda: asked.append(True))
    assert app.test_client().get("/shutdown", headers=KEY).status_code == 405
    assert asked == []
    reply = app.test_client().post("/shutdown", headers=KEY)
    assert (reply.status_code, reply.get_json()) == (200, {"status": "draining"})
    assert asked == [True]


def test_a_server_inside_another_program_is_stopped_by_that() -> None:
    app = create_app(ScriptedEngine(), HttpConfig(api_keys=("key",)))
    reply = app.test_client().post("/shutdown", headers=KEY)
    assert reply.status_code == 403
    assert reply.get_json()["error"]["code"] == "shutdown_not_offered"
