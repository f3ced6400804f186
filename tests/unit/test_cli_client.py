"""The commands' HTTP client against servers that do and do not behave."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from ferrum_local.cli.client import ServerClient, ServerRefused, ServerUnreachable
from ferrum_local.cli.server_address import configured_url, connect
from ferrum_local.config import resolve
from ferrum_local.errors import FerrumError

JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
EVENT_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


LINGER_NOT = struct.pack("ii", 1, 0)  # closing resets the connection


@contextmanager
def answering(reply: bytes, *, resets: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives this reply to one request, whatever it is.

    :param resets: it then resets the connection, as the system does for a program that died.
    """
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                requests.append(_whole_request(connection))
                connection.sendall(reply)
                if resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join()


def _whole_request(connection: socket.socket) -> bytes:
    """Closing with a part of it unread would reset the connection, and the reply be lost."""
    with connection.makefile("rb") as stream:
        head = b"".join(iter(stream.readline, b"\r\n"))
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        return head + b"\r\n" + stream.read(int(length[1]) if length else 0)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_base_url_may_end_as_clients_write_it(suffix: str) -> None:
    with answering(JSON_HEAD + b'{"a": 1}') as (url, requests):
        client = ServerClient(url + suffix, api_key="k")
        assert client.get("/v1/models") == {"a": 1}
    assert requests[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in requests[0]


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:port", "http://x:99999", "http://[::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(click.BadParameter, match="expected http://HOST:PORT"):
        ServerClient(url)


def test_events_are_read_past_keep_alives_until_done() -> None:
    events = b': keep-alive\n\ndata: {"n": 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n'
    with answering(EVENT_HEAD + events) as (url, _):
        with ServerClient(url).stream("/x", {}) as stream:
            assert [event["n"] for event in stream] == [1, 2]


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (JSON_HEAD + b"<html>", FerrumError, "its reply is no JSON"),
        (b"SSH-2.0-OpenSSH\r\n", ServerUnreachable, "does not answer as a server would"),
        (b"", ServerUnreachable, "does not answer as a server would"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ServerRefused, "status 404"),
        (
            b"HTTP/1.1 401 x\r\nConnection: close\r\n\r\n"
            b'{"error": {"message": "no key", "code": "missing_api_key"}}',
            ServerRefused,
            "^no key$",
        ),
    ],
)
def test_a_wrong_answer_is_told_plainly(reply: bytes, error: type[FerrumError], said: str) -> None:
    with answering(reply) as (url, _), pytest.raises(error, match=said):
        ServerClient(url).get("/")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (b'data: {"error": {"message": "out of luck"}}\n\n', "out of luck"),
        (b'data: {"n": 1}\n\n', "before the answer was complete"),
    ],
)
def test_a_stream_that_fails_midway_is_an_error(events: bytes, said: str) -> None:
    with answering(EVENT_HEAD + events) as (url, _):
        with ServerClient(url).stream("/x", {}) as stream, pytest.raises(FerrumError, match=said):
            list(stream)


def test_a_connection_lost_midway_is_no_wrong_address() -> None:
    event = b'data: {"n": 1}\n\n'
    with answering(EVENT_HEAD + event, resets=True) as (url, _):
        with ServerClient(url).stream("/x", {}) as stream:
            with pytest.raises(FerrumError, match="lost before the answer was complete: Conn"):
                list(stream)


# Which server


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"FERRUM_HOST": "0.0.0.0", "FERRUM_PORT": "9"}, "http://127.0.0.1:9"),
        ({"FERRUM_HOST": "::"}, "http://[::1]:8000"),
    ],
)
def test_without_a_url_it_is_where_serve_would_listen(
    env: dict[str, str], url: str, tmp_path: Path
) -> None:
    resolved = resolve({}, env, cwd=tmp_path, config=os.devnull)
    assert configured_url(resolved) == url


def test_the_key_of_this_machine_goes_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FERRUM_API_KEY", "secret")
    assert connect(None, None).api_key == "secret"
    assert connect("localhost:1", None).api_key == "secret"
    assert connect("http://example.com", None).api_key is None
    assert connect("http://example.com", "other").api_key == "other"
