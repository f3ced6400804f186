"""The client of ``/v1/realtime``: addresses, and how refusals and broken sessions are told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from ferrum_local.cli.realtime_client import RealtimeClient, realtime_url
from ferrum_local.errors import FerrumError


@contextmanager
def socket_server(
    talk: Callable[[ServerConnection], None],
    refuse: Callable[[ServerConnection, Request], Response | None] | None = None,
) -> Iterator[str]:
    with serve(talk, "127.0.0.1", 0, process_request=refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("url", "model", "address"),
    [
        ("http://127.0.0.1:8000", None, "ws://127.0.0.1:8000/v1/realtime"),
        ("http://h/v1/", "a/b c", "ws://h/v1/realtime?model=a%2Fb%20c"),
        ("https://h:9/x/v1", None, "wss://h:9/x/v1/realtime"),
        ("localhost:8000", None, "ws://localhost:8000/v1/realtime"),
        ("ws://h/v1/realtime", None, "ws://h/v1/realtime"),
    ],
)
def test_addresses(url: str, model: str | None, address: str) -> None:
    assert realtime_url(url, model) == address


@pytest.mark.parametrize("url", ["ftp://h", "http://", ""])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(FerrumError, match="no address"):
        realtime_url(url, None)


def test_events_go_both_ways_with_the_key() -> None:
    def talk(connection: ServerConnection) -> None:
        assert connection.request is not None
        key = connection.request.headers["Authorization"]
        connection.send(json.dumps({"key": key, "got": json.loads(connection.recv())}))

    with socket_server(talk) as url, RealtimeClient(url, api_key="secret") as client:
        client.append(b"\1\2")
        assert client.receive(10) == {
            "key": "Bearer secret",
            "got": {"type": "input_audio_buffer.append", "audio": "AQI="},
        }
        with pytest.raises(FerrumError, match="ended the session \\(1000"):
            client.receive(10)


def test_a_refusal_is_told_in_the_servers_words() -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        body = json.dumps({"error": {"message": "This API key is not valid."}})
        return connection.respond(HTTPStatus.UNAUTHORIZED, body)

    with socket_server(lambda _: None, refuse) as url:
        with pytest.raises(FerrumError, match=f"{url}: This API key is not valid."):
            RealtimeClient(url)


def test_another_server_and_none_are_told() -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(HTTPStatus.NOT_FOUND, "what?")

    with socket_server(lambda _: None, refuse) as url:
        with pytest.raises(FerrumError, match="answers 404; is it ferrum-local?"):
            RealtimeClient(url)
    with pytest.raises(FerrumError, match="no server can be reached"):
        RealtimeClient(url)


def test_a_connection_that_breaks_off_is_told() -> None:
    with socket_server(lambda connection: connection.socket.shutdown(socket.SHUT_RDWR)) as url:
        client = RealtimeClient(url)
        with pytest.raises(FerrumError, match="broke off"):
            client.receive(10)
