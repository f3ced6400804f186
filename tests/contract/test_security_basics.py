"""Host names, origins and body limits, over real HTTP and raw sockets."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response

from ferrum_local.http.app import create_app
from ferrum_local.http.bodies import json_response, read_json_body
from ferrum_local.http.config import HttpConfig
from ferrum_local.server.config import Backend, ServeConfig
from ferrum_local.types import ModelSpec
from tests.fakes import Address, ScriptedEngine, serving
from tests.prompted_engine import FACTORY
from tests.server_process import ServerProcess

Reply = tuple[int, dict[str, str], dict[str, Any]]
JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"
POSIX_ONLY = pytest.mark.skipif(os.name != "posix", reason="gunicorn needs POSIX")
BACKENDS = [pytest.param("gunicorn", marks=POSIX_ONLY), "werkzeug"]


def app_with_echo(config: HttpConfig | None = None) -> Flask:
    app = create_app(ScriptedEngine(), config or HttpConfig())

    @app.post("/echo")
    def echo() -> Response:
        return json_response({"got": read_json_body()})

    return app


def ask(
    address: Address,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    body: Any = None,
    *,
    chunked: bool = False,
) -> Reply:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=20)
    try:
        connection.request(method, path, body, headers or {}, encode_chunked=chunked)
        response = connection.getresponse()
        data = response.read()
        return response.status, dict(response.headers), json.loads(data) if data else {}
    finally:
        connection.close()


def test_sec_01_a_foreign_host_name_is_refused() -> None:
    with serving(create_app(ScriptedEngine())) as address:
        for path in ("/v1/models", "/health", "/metrics", "/nowhere"):
            status, _, body = ask(address, "GET", path, {"Host": "evil.example"})
            assert (status, body["error"]["code"]) == (403, "host_not_allowed")
            assert "--allowed-host" in body["error"]["message"]
        for host in ("localhost:1234", f"127.0.0.1:{address.port}", "[::1]"):
            assert ask(address, "GET", "/v1/models", {"Host": host})[0] == 200


def test_sec_01_bound_wide_or_allowed_names_are_answered() -> None:
    for config in (
        HttpConfig(bound_host="0.0.0.0"),
        HttpConfig(allowed_hosts=("evil.example",)),
    ):
        with serving(create_app(ScriptedEngine(), config)) as address:
            assert ask(address, "GET", "/v1/models", {"Host": "evil.example"})[0] == 200


def preflight(address: Address, origin: str, **more: str) -> Reply:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        **more,
    }
    return ask(address, "OPTIONS", "/v1/chat/completions", headers)


@pytest.mark.parametrize(
    "origin",
    [
        "tauri://localhost",
        "http://tauri.localhost",
        "https://tauri.localhost",
        "app://obsidian.md",
        "http://localhost:3000",
    ],
)
def test_sec_02_desktop_apps_pass_the_preflight_without_a_key(origin: str) -> None:
    with serving(create_app(ScriptedEngine(), HttpConfig(api_keys=("k",)))) as address:
        status, headers, _ = preflight(address, origin)
        assert status == 204
        assert headers["Access-Control-Allow-Origin"] == origin
        assert "POST" in headers["Access-Control-Allow-Methods"]
        assert "x-stainless-os" in headers["Access-Control-Allow-Headers"]
        # an error is readable for the page too
        status, headers, _ = ask(address, "GET", "/v1/models", {"Origin": origin})
        assert (status, headers["Access-Control-Allow-Origin"]) == (401, origin)


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_sec_02_foreign_pages_get_no_grant_and_change_nothing(origin: str) -> None:
    with serving(app_with_echo()) as address:
        status, headers, body = preflight(address, origin)
        assert (status, body["error"]["code"]) == (403, "origin_not_allowed")
        assert "Access-Control-Allow-Origin" not in headers
        # a "simple" request needs no preflight: it must not reach a route that does work
        status, headers, _ = ask(address, "POST", "/echo", {"Origin": origin, **JSON}, b"{}")
        assert status == 403 and "Access-Control-Allow-Origin" not in headers
        status, headers, _ = ask(address, "GET", "/v1/models", {"Origin": origin})
        assert status == 200 and "Access-Control-Allow-Origin" not in headers


UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


def test_sec_01_sec_02_a_websocket_from_elsewhere_is_refused_before_any_route() -> None:
    """CORS does not cover WebSockets: a page could read whatever comes back."""
    for path in ("/v1/realtime", "/v1/models", "/nowhere"):
        with serving(create_app(ScriptedEngine())) as address:
            for origin in ("https://evil.example", "null"):
                status, _, body = ask(address, "GET", path, {**UPGRADE, "Origin": origin})
                assert (status, body["error"]["code"]) == (403, "origin_not_allowed")
            rebound = {**UPGRADE, "Host": "evil.example", "Origin": "http://evil.example"}
            assert ask(address, "GET", path, rebound)[2]["error"]["code"] == "host_not_allowed"
            for origin in ("http://localhost:3000", "tauri://localhost"):
                assert ask(address, "GET", path, {**UPGRADE, "Origin": origin})[0] != 403
            assert ask(address, "GET", path, UPGRADE)[0] != 403  # a program, not a page
    with serving(create_app(ScriptedEngine(), HttpConfig(api_keys=("k",)))) as address:
        assert ask(address, "GET", "/v1/realtime", UPGRADE)[0] == 401


def test_sec_02_null_and_others_are_granted_when_asked_for() -> None:
    config = HttpConfig(cors_origins=("null", "https://chat.example"))
    with serving(create_app(ScriptedEngine(), config)) as address:
        for origin in config.cors_origins:
            assert preflight(address, origin)[0] == 204
        assert preflight(address, "https://evil.example")[0] == 403


def test_sec_03_exactly_one_origin_is_granted_and_caches_know() -> None:
    config = HttpConfig(cors_origins=("*", "https://chat.example"))
    with serving(create_app(ScriptedEngine(), config)) as address:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=20)
        connection.request("GET", "/v1/models", headers={"Origin": "https://chat.example"})
        response = connection.getresponse()
        assert response.headers.get_all("Access-Control-Allow-Origin") == ["https://chat.example"]
        assert response.headers.get_all("Vary") == ["Origin"]
        connection.close()
        assert ask(address, "GET", "/v1/models")[1]["Vary"] == "Origin"


def test_a_page_of_the_server_itself_may_call_it() -> None:
    with serving(app_with_echo(HttpConfig(bound_host="0.0.0.0"))) as address:
        own = {"Host": "box.lan:8000", "Origin": "http://box.lan:8000", **JSON}
        assert ask(address, "POST", "/echo", own, b"{}")[0] == 200
        other = {**own, "Origin": "http://box.lan:9000"}
        assert ask(address, "POST", "/echo", other, b"{}")[0] == 403


def test_sec_05_a_body_over_the_limit_is_a_413_not_a_reset() -> None:
    with serving(app_with_echo(HttpConfig(max_body_bytes=100_000))) as address:
        fits = json.dumps({"text": "x" * 99_000}).encode()
        assert ask(address, "POST", "/echo", JSON, fits)[0] == 200
        large = json.dumps({"text": "x" * 8_000_000}).encode()
        status, _, body = ask(address, "POST", "/echo", JSON, large)
        assert (status, body["error"]["code"]) == (413, "body_too_large")
        assert "100000 bytes" in body["error"]["message"]


def test_sec_05_the_limit_holds_for_chunked_bodies() -> None:
    with serving(app_with_echo(HttpConfig(max_body_bytes=100_000))) as address:
        headers = {"Transfer-Encoding": "chunked", **JSON}
        fits = iter([b'{"text":"', b"x" * 50_000, b'"}'])
        assert ask(address, "POST", "/echo", headers, fits, chunked=True)[0] == 200
        large = iter([b'{"text":"', *[b"x" * 50_000] * 40, b'"}'])
        status, _, body = ask(address, "POST", "/echo", headers, large, chunked=True)
        assert (status, body["error"]["code"]) == (413, "body_too_large")
        assert ask(address, "GET", "/health")[0] == 200


def test_sec_07_an_empty_chunked_body_is_a_400_at_once() -> None:
    with serving(app_with_echo()) as address:
        headers = {"Transfer-Encoding": "chunked", **JSON}
        status, _, body = ask(address, "POST", "/echo", headers, iter([]), chunked=True)
        assert (status, body["error"]["code"]) == (400, "empty_body")


@pytest.mark.parametrize("backend", BACKENDS)
def test_sec_05_both_servers_let_a_refusal_through_to_the_client(
    backend: Backend, tmp_path: Path
) -> None:
    config = ServeConfig(
        models=(ModelSpec(id="tiny", path="ok"),),
        port=0,
        announce="json",
        http=HttpConfig(max_body_bytes=100_000, body_timeout_s=0.3),
    )
    server = ServerProcess(config, tmp_path / "log", engine_factory=FACTORY, backend=backend)
    try:
        address = Address("127.0.0.1", server.read_ready()["port"])
        large = b"x" * 8_000_000
        chunked = {"Transfer-Encoding": "chunked", **JSON}
        assert ask(address, "POST", CHAT, JSON, large)[0] == 413
        pieces = iter([b"x" * 50_000] * 100)
        assert ask(address, "POST", CHAT, chunked, pieces, chunked=True)[0] == 413
        assert ask(address, "POST", CHAT, {"Host": "evil.example", **JSON}, large)[0] == 403
        assert ask(address, "POST", CHAT, {}, large)[0] == 415
        assert ask(address, "POST", "/nowhere", JSON, large)[0] == 404
        assert ask(address, "POST", "/health", JSON, large)[0] == 405
        assert trickle(address, CHAT) == 408
        assert ask(address, "GET", "/health")[0] == 200
        assert "Traceback" not in server.log
    finally:
        server.close()


def trickle(address: Address, path: str) -> int:
    """Send a body a byte at a time until an answer comes; its status."""
    with socket.create_connection((address.host, address.port), timeout=20) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
        readable: list[socket.socket] = []
        while not readable:
            client.sendall(b" ")
            readable, _, _ = select.select([client], [], [], 0.05)
        return int(client.makefile("rb").readline().split()[1])


def test_sec_06_a_body_that_trickles_in_is_given_up() -> None:
    with serving(app_with_echo(HttpConfig(body_timeout_s=0.3))) as address:
        assert trickle(address, "/echo") == 408


@pytest.mark.parametrize(
    "headers, body, status, code",
    [
        (JSON, b"", 400, "empty_body"),
        (JSON, b"  ", 400, "empty_body"),
        (JSON, b'{"a":1,}', 400, "invalid_json"),
        (JSON, b"\xff\xfe", 400, "invalid_json"),
        (JSON, b"[" * 1000 + b"]" * 1000, 400, "invalid_json"),
        ({"Content-Type": "text/plain"}, b"{}", 415, "unsupported_media_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"{}", 415, None),
        ({}, b"{}", 415, "unsupported_media_type"),
    ],
)
def test_json_09_a_bad_body_is_a_client_error(
    headers: dict[str, str], body: bytes, status: int, code: str | None
) -> None:
    with serving(app_with_echo()) as address:
        got, _, reply = ask(address, "POST", "/echo", headers, body)
    assert got == status
    assert reply["error"]["type"] == "invalid_request_error"
    assert code is None or reply["error"]["code"] == code


def test_json_types_with_a_charset_or_a_suffix_are_json() -> None:
    with serving(app_with_echo()) as address:
        for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"):
            status, _, body = ask(address, "POST", "/echo", {"Content-Type": kind}, b"[1]")
            assert (status, body) == (200, {"got": [1]})


def test_a_body_that_breaks_off_is_no_fault_of_the_server() -> None:
    with serving(app_with_echo()) as address:
        for broken in (
            b"Content-Length: 100\r\n\r\n{}",
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        ):
            with socket.create_connection((address.host, address.port), timeout=20) as client:
                head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
                client.sendall(head + b"Content-Type: application/json\r\n" + broken)
                client.shutdown(socket.SHUT_WR)
                assert client.makefile("rb").readline().split()[1] == b"400"
