"""Schemathesis on every route of /openapi.json: no 5xx, and what comes is what was described."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from ferrum_local.http.app import create_app
from ferrum_local.http.openapi import describe
from tests.contract.conftest import worker_pids
from tests.contract.live import wait_idle
from tests.fakes import ScriptedEngine

MAX_EXAMPLES = 8  # random ones; those that cover each field's limits come on top
MAX_TOKENS = 2
DESCRIPTION = describe(create_app(ScriptedEngine()))

schema = schemathesis.openapi.from_dict(DESCRIPTION)


@schema.parametrize()
@settings(
    max_examples=MAX_EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_asked_gets_an_answer_that_was_described(case: Any, target: Any) -> None:
    if isinstance(case.body, dict):
        generates = case.path.endswith("/completions")
        if generates:
            limit_answer(case.body)
        if case.meta.generation.mode is GenerationMode.POSITIVE:
            reach_the_model(case.body, generates=generates)
    # All checks but one: valid JSON for the schema may still ask for what cannot be had,
    # as a tool's answer to no call. The schema cannot say that.
    case.call_and_validate(base_url=target.url, excluded_checks=[positive_data_acceptance])


def limit_answer(body: dict[str, Any]) -> None:
    """Ask for few tokens, without changing whether the request is valid."""
    for name in ("max_tokens", "max_completion_tokens"):
        if name in body and type(body[name]) is int and (body[name] > MAX_TOKENS or body[name] < 0):
            body[name] = MAX_TOKENS if body[name] >= -1 else body[name]
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_tokens"] = MAX_TOKENS


def reach_the_model(body: dict[str, Any], *, generates: bool) -> None:
    """Take away what is refused before anything is generated, as most examples have some of
    it, and let half of the rest be streams."""
    if body.get("prompt") == "":
        body["prompt"] = "Hi"
    if isinstance(body.get("model"), str):
        del body["model"]
    if generates and body.get("stream") is None and len(json.dumps(body)) % 2:
        body["stream"] = True
    for message in body.get("messages", ()):
        if message.get("role") != "assistant":
            message.pop("function_call", None)
            message.pop("tool_calls", None)
        if message.get("role") == "tool":
            message["tool_call_id"] = message.get("tool_call_id") or "call_1"
        if message.get("role") == "function":
            message["name"] = message.get("name") or "f"


@pytest.fixture(scope="module", autouse=True)
def process_lives(target: Any) -> Any:
    """No request may end the process, and none may leave a sequence behind."""
    before = worker_pids(target)
    yield
    assert worker_pids(target) == before
    assert wait_idle(target).generated > 0


def test_the_served_description_is_the_one_that_was_tested(target: Any) -> None:
    with urllib.request.urlopen(f"{target.url}/openapi.json", timeout=60) as response:
        assert json.load(response) == json.loads(json.dumps(DESCRIPTION))
