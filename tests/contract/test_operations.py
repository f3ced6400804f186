"""The routes that tell what the server is and how it is, over real HTTP."""

from __future__ import annotations

import json
import urllib.request
from datetime import datetime, timezone
from typing import Any
from urllib.error import HTTPError

import openai
import pytest

import ferrum_local
from ferrum_local.http.app import create_app
from tests.fakes import ScriptedEngine, model_info, serving


def get(url: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, dict(response.headers), json.load(response)
    except HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


def test_root_names_the_server() -> None:
    engine = ScriptedEngine()
    with serving(create_app(engine)) as address:
        assert get(f"{address.url}/")[2] == {
            "name": "ferrum-local",
            "version": ferrum_local.__version__,
            "api_version": "v1",
            "status": "running",
        }
        engine.state = "loading"
        assert get(f"{address.url}/")[2]["status"] == "loading"


def test_health_when_ready_has_the_engine_and_the_models() -> None:
    with serving(create_app(ScriptedEngine())) as address:
        status, _, body = get(f"{address.url}/health")
    assert status == 200
    age = datetime.now(timezone.utc) - datetime.fromisoformat(body.pop("timestamp"))
    assert 0 <= age.total_seconds() < 60
    assert body == {
        "status": "healthy",
        "version": ferrum_local.__version__,
        "engine": {"active_requests": 0, "queued_requests": 0},
        "scheduler": {
            "total_requests": 0,
            "successful_requests": 0,
            "failed_requests": 0,
            "throughput_rps": 0.5,
        },
        "models": [{"id": "tiny", "kind": "chat", "state": "ready", "error": None}],
    }


@pytest.mark.parametrize("state", ["loading", "draining", "failed"])
def test_health_is_a_503_until_ready_but_the_process_is_alive(state: str) -> None:
    with serving(create_app(ScriptedEngine(state=state))) as address:
        status, headers, body = get(f"{address.url}/health")
        assert (status, body["status"]) == (503, state)
        assert int(headers["Retry-After"]) >= 1
        assert get(f"{address.url}/health/live")[0] == 200


def test_the_sdk_lists_and_retrieves_models() -> None:
    engine = ScriptedEngine(models=(model_info("tiny"), model_info("org/big")))
    with serving(create_app(engine)) as address:
        client = openai.OpenAI(base_url=f"{address.url}/v1", api_key="none", max_retries=0)
        listed = client.models.list().data
        assert [model.id for model in listed] == ["tiny", "org/big"]
        assert (listed[0].object, listed[0].created) == ("model", 1_700_000_000)
        assert client.models.retrieve("org/big").id == "org/big"
        assert client.models.retrieve("small").id == "tiny"
        extra = client.models.retrieve("tiny").model_extra
        assert extra == {
            "capabilities": ["chat", "completion"],
            "context_length": 2048,
            "state": "ready",
            "size_bytes": 1234,
            "aliases": ["small"],
            **dict.fromkeys(("progress", "expires_in_s", "quantization", "license", "error")),
        }
        with pytest.raises(openai.NotFoundError, match="tiny, org/big") as missing:
            client.models.retrieve("gpt-9")
        assert missing.value.code == "model_not_found"


def test_a_model_id_with_slashes_needs_no_encoding() -> None:
    engine = ScriptedEngine(models=(model_info("org/big"),))
    with serving(create_app(engine)) as address:
        assert get(f"{address.url}/v1/models/org/big")[2]["id"] == "org/big"
        assert get(f"{address.url}/v1/models/org%2Fbig")[2]["id"] == "org/big"


def test_tts_14_models_are_listed_whatever_kind_is_loaded() -> None:
    for models in ((), (model_info("voice", kind="speech"),)):
        with serving(create_app(ScriptedEngine(models=models))) as address:
            status, _, body = get(f"{address.url}/v1/models")
        assert status == 200
        assert [model["id"] for model in body["data"]] == [model.id for model in models]


def test_openapi_json_is_served() -> None:
    with serving(create_app(ScriptedEngine())) as address:
        status, _, body = get(f"{address.url}/openapi.json")
    assert status == 200
    assert body["openapi"].startswith("3.1")
    assert {"/", "/health", "/metrics", "/v1/models", "/v1/chat/completions"} <= set(body["paths"])
