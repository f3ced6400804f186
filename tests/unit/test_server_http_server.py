"""``ferrum_local.HttpServer``: the server inside this very process."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import ferrum_local
from ferrum_local.errors import ModelLoadError
from ferrum_local.http.config import HttpConfig
from ferrum_local.server import http_server
from ferrum_local.server.http_server import HealthStatus, HttpServer
from ferrum_local.server.listener import Listener, PortInUse, bind
from ferrum_local.types import LlmOptions, ModelSpec
from tests.fakes import ScriptedEngine, chunk
from tests.prompted_engine import PromptedEngine
from tests.server_process import ROOT, ChatStream, is_refused

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

SMOLLM2 = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer(ScriptedEngine())
    yield made
    made.stop(timeout=0)


def port_of(server: HttpServer) -> int:
    assert server.address is not None
    return server.address[1]


def get(server: HttpServer, path: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{server.url}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def owning(model: str) -> HttpServer:
    engine = PromptedEngine([ModelSpec(id="tiny", path=model)], LlmOptions())
    return HttpServer._owning(engine, None, "127.0.0.1", 0)


def test_it_is_the_public_name() -> None:
    assert ferrum_local.HttpServer is HttpServer


def test_serves_within_a_with_block() -> None:
    with HttpServer(ScriptedEngine()) as server:
        assert server.is_running
        assert server.wait_ready()
        port = port_of(server)
        assert ChatStream(port, "hi").read_rest()[-1] == "[DONE]"
        assert server.health_check() is HealthStatus.HEALTHY
    assert not server.is_running
    assert server.address is None and server.url is None
    assert server.health_check() is HealthStatus.UNHEALTHY
    assert is_refused(port)


def test_starting_and_stopping_twice_changes_nothing(server: HttpServer) -> None:
    server.stop()
    server.start()
    address = server.address
    server.start()
    assert server.address == address
    server.stop()
    server.stop()


def test_it_can_run_again_with_an_engine_of_the_program(server: HttpServer) -> None:
    server.start()
    server.stop()
    server.start()
    assert get(server, "/health")[0] == 200


def test_a_taken_port_is_said_and_leaves_it_stopped(server: HttpServer) -> None:
    server.start()
    second = HttpServer(ScriptedEngine(), port=port_of(server))
    with pytest.raises(PortInUse):
        second.start()
    assert not second.is_running


def test_own_handlers_obey_the_key_like_every_route() -> None:
    server = HttpServer(ScriptedEngine(), HttpConfig(api_keys=("secret",)))
    server.register_handler("/hello/<name>", "get", lambda name: {"hello": name})
    with server:
        assert get(server, "/hello/you")[0] == 401
        status, body = get(server, "/hello/you", Authorization="Bearer secret")
        assert (status, json.loads(body)) == (200, {"hello": "you"})


def test_middleware_wraps_the_app_and_the_last_one_sees_requests_first(
    server: HttpServer,
) -> None:
    seen: list[str] = []

    def noting(name: str) -> object:
        def middleware(app: WSGIApplication) -> WSGIApplication:
            def wrapped(environ: WSGIEnvironment, start_response: StartResponse) -> object:
                seen.append(name)
                return app(environ, start_response)

            return wrapped  # type: ignore[return-value]

        return middleware

    server.register_middleware(noting("inner"))  # type: ignore[arg-type]
    server.register_middleware(noting("outer"))  # type: ignore[arg-type]
    server.start()
    get(server, "/health")
    assert seen == ["outer", "inner"]


def test_registering_after_start_is_refused(server: HttpServer) -> None:
    server.start()
    with pytest.raises(RuntimeError, match="before start"):
        server.register_handler("/late", "GET", lambda: "late")
    with pytest.raises(RuntimeError, match="before start"):
        server.register_middleware(lambda app: app)


def test_metrics_count_what_was_served(server: HttpServer) -> None:
    server.start()
    get(server, "/v1/models")
    get(server, "/nowhere")
    server.stop()  # what ended is counted
    metrics = server.get_metrics()
    assert metrics.total_requests == 2
    assert metrics.requests_by_endpoint["/v1/models"] == 1
    assert metrics.requests_by_status == {200: 1, 404: 1}
    assert metrics.bytes_sent > 0
    assert metrics.avg_response_time_ms > 0
    assert metrics.active_connections == 0


def test_an_engine_of_its_own_is_loaded_in_the_background_and_closed() -> None:
    server = owning("ok")
    server.start()
    assert server.wait_ready(timeout=60)
    assert get(server, "/health")[0] == 200
    server.stop()
    with pytest.raises(RuntimeError, match="Make a new HttpServer"):
        server.start()


def test_while_loading_it_is_degraded_and_stop_does_not_wait(tmp_path: object) -> None:
    server = owning(f"wait {tmp_path}/gate")
    server.start()
    assert not server.wait_ready(timeout=0)
    assert server.health_check() is HealthStatus.DEGRADED
    assert get(server, "/health")[0] == 503
    server.stop()
    assert not server.is_running


def test_a_failed_load_is_raised_to_who_waits() -> None:
    server = owning("broken")
    server.start()
    with pytest.raises(ModelLoadError, match="not a GGUF"):
        server.wait_ready(timeout=60)
    assert server.health_check() is HealthStatus.UNHEALTHY
    server.stop()


def test_who_waits_for_an_engine_of_the_program_waits_until_it_is_ready() -> None:
    engine = ScriptedEngine(state="loading")
    with HttpServer(engine) as server:
        assert not server.wait_ready(timeout=0.1)
        threading.Timer(0.2, lambda: setattr(engine, "state", "ready")).start()
        assert server.wait_ready(timeout=60)


def test_a_start_that_fails_gives_the_port_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HttpServer(ScriptedEngine())
    bound: list[Listener] = []

    def bind_and_note(host: str, port: int) -> Listener:
        bound.append(bind(host, port))
        return bound[-1]

    def fail(_server: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(http_server, "bind", bind_and_note)
    with monkeypatch.context() as patched:
        patched.setattr(http_server.ThreadedServer, "start", fail)
        with pytest.raises(RuntimeError):
            server.start()
    assert not server.is_running and bound[0].sockets[0].fileno() < 0
    server.start()
    assert get(server, "/health")[0] == 200
    server.stop()


def test_stop_lets_a_stream_end(server: HttpServer) -> None:
    gate = threading.Event()
    server = HttpServer(ScriptedEngine((chunk("before"), gate, chunk("after"))))
    server.start()
    port = port_of(server)
    stream = ChatStream(port, "hi")
    stream.read_until("before")
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    while not is_refused(port):
        pass
    gate.set()
    assert any("after" in data for data in stream.read_rest())
    stopping.join()


def test_stop_ends_a_stream_of_its_own_engine_with_an_error_event() -> None:
    server = owning("ok")
    server.start()
    server.wait_ready()
    stream = ChatStream(port_of(server), "forever")
    stream.read_until("tick")
    server.stop(timeout=0)
    assert "error" in json.loads(stream.read_rest()[-1])


def test_stop_cuts_what_an_engine_of_the_program_still_runs() -> None:
    server = HttpServer(ScriptedEngine((chunk("tick"), threading.Event())))
    server.start()
    stream = ChatStream(port_of(server), "hi")
    stream.read_until("tick")
    server.stop(timeout=0)
    assert not server.is_running


def test_a_silent_connection_does_not_hold_up_the_stop(server: HttpServer) -> None:
    server.start()
    with socket.create_connection(("127.0.0.1", port_of(server))):
        server.stop(timeout=3600)
    assert not server.is_running


@pytest.mark.skipif(not SMOLLM2.exists(), reason="the starter models are not fetched")
def test_a_real_model_answers_from_a_path_alone() -> None:
    with HttpServer.from_models(SMOLLM2, options=LlmOptions(ctx_size=512, slots=1)) as server:
        assert server.wait_ready(timeout=120)
        models = json.loads(get(server, "/v1/models")[1])["data"]
        assert [model["id"] for model in models] == [SMOLLM2.stem]
        assert ChatStream(port_of(server), "Say hello.").read_rest()[-1] == "[DONE]"
