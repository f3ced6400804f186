"""The OpenAPI document knows every route and refers to nothing that is not there."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from flask import Flask, Response

from ferrum_local.http.app import create_app
from ferrum_local.http.bodies import json_response
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.openapi import describe, documented
from tests.fakes import ScriptedEngine


class Question(msgspec.Struct):
    text: str
    n: int = 1


class Answer(msgspec.Struct):
    text: str


class Part(msgspec.Struct):
    piece: str


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path, method): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def test_every_route_is_described() -> None:
    app = create_app(ScriptedEngine())
    described = operations(describe(app))
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            operation = described[path, method.lower()]
            assert operation["summary"]
            assert {"200", "400", "401", "403", "404", "500"} <= set(operation["responses"])
    assert described["/v1/models/{model_id}", "get"]["parameters"][0]["required"]
    assert ("/v1/chat/completions", "post") in described


def test_every_reference_resolves_and_ids_are_unique() -> None:
    document = describe(create_app(ScriptedEngine()))
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))
    assert names and set(names) <= set(document["components"]["schemas"])
    ids = [operation["operationId"] for operation in operations(document).values()]
    assert len(ids) == len(set(ids))


def test_a_documented_view_shows_its_structs() -> None:
    app = create_app(ScriptedEngine())

    @app.post("/ask")
    @documented(summary="Ask", request=Question, response=Answer, stream=Part)
    def ask() -> Response:
        return json_response(Answer("a"))

    document = describe(app)
    operation = operations(document)["/ask", "post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Question"}
    assert document["components"]["schemas"]["Question"]["required"] == ["text"]
    content = operation["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    done, payload = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert done == {"const": "[DONE]"}
    assert {"$ref": "#/components/schemas/Part"} in payload["contentSchema"]["anyOf"]
    assert document["components"]["schemas"]["Part"]["required"] == ["piece"]
    assert operation["responses"]["429"]["headers"]["Retry-After"]["required"]


def test_routes_that_a_host_program_added_are_listed_too() -> None:
    app: Flask = create_app(ScriptedEngine())

    @app.get("/mine")
    def mine() -> str:
        """My own page."""
        return "hi"

    assert operations(describe(app))["/mine", "get"]["summary"] == "My own page."


def test_the_key_is_described_only_where_one_is_needed() -> None:
    with_keys = create_app(ScriptedEngine(), HttpConfig(api_keys=("k",)))
    headers = {"Authorization": "Bearer k"}
    document = with_keys.test_client().get("/openapi.json", headers=headers).get_json()
    assert operations(document)["/v1/models", "get"]["security"] == [{"key": []}]
    assert "security" not in operations(document)["/health", "get"]
    without = create_app(ScriptedEngine()).test_client().get("/openapi.json").get_json()
    assert "security" not in operations(without)["/v1/models", "get"]
