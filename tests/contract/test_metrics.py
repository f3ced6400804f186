"""What ``/metrics`` says, read with Prometheus' own parser."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from flask import Flask, Response, request
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ferrum_local.http.app import create_app
from ferrum_local.http.metrics import ServerMetrics, snapshot
from ferrum_local.http.request_context import current_record
from ferrum_local.http.sse import KEEP_ALIVE, event, stream_response
from ferrum_local.http.state import state
from ferrum_local.types import InferenceRequest
from tests.fakes import ScriptedEngine, Step, chunk, model_info, serving, wait_until

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(app: Flask) -> Series:
    response = app.test_client().get("/metrics")
    assert response.status_code == 200
    assert response.content_type.startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(response.text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def app_that_streams(engine: ScriptedEngine) -> Flask:
    app = create_app(engine)

    @app.post("/stream")
    def stream() -> Response:
        running = engine.infer_stream(
            InferenceRequest(id=current_record().request_id, model_id="tiny", prompt="x")
        )

        def events() -> Iterator[bytes]:
            while True:
                try:
                    step = running.poll(0.02)
                except StopIteration:
                    return
                yield KEEP_ALIVE if step is None else event({"text": step.text})

        return stream_response(events(), on_close=running.close)

    return app


def test_met_01_unknown_paths_share_one_label() -> None:
    app = create_app(ScriptedEngine())
    client = app.test_client()
    client.get("/first-unknown").close()
    before = set(scrape(app))
    for i in range(1000):
        client.get(f"/wp-admin/{i}.php").close()
    series = scrape(app)
    assert set(series) == before
    labels = {"method": "GET", "status": "404", "url_rule": "unmatched"}
    assert value(series, "ferrum_http_requests_total", **labels) == 1001


def test_met_01_made_up_methods_make_no_series() -> None:
    app = create_app(ScriptedEngine())
    client = app.test_client()
    client.open("/v1/models", method="BREW").close()
    before = set(scrape(app))
    for i in range(50):
        client.open("/v1/models", method=f"BREW{i}").close()
    assert set(scrape(app)) == before


def test_met_02_the_label_is_the_rule_not_the_id() -> None:
    app = create_app(ScriptedEngine())
    client = app.test_client()
    client.get("/v1/models/tiny").close()
    client.get("/v1/models/other").close()
    before = set(scrape(app))
    for i in range(200):
        client.get(f"/v1/models/model-{i}").close()
    series = scrape(app)
    assert set(series) == before
    labels = {"method": "GET", "status": "404", "url_rule": "/v1/models/<model_id:model_id>"}
    assert value(series, "ferrum_http_requests_total", **labels) == 201


def test_met_03_two_apps_in_one_process_count_apart() -> None:
    first, second = create_app(ScriptedEngine()), create_app(ScriptedEngine())
    first.test_client().get("/health").close()
    assert snapshot(first).total_requests == 1
    assert snapshot(second).total_requests == 0


def test_met_05_a_stream_is_timed_to_its_end_and_to_its_first_token() -> None:
    go_on = threading.Event()
    engine = ScriptedEngine([chunk("a"), go_on, chunk("b")])
    app = app_that_streams(engine)
    with serving(app) as address:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=20)
        connection.request("POST", "/stream")
        response = connection.getresponse()
        assert response.readline() == b'data: {"text":"a"}\n'
        halfway = scrape(app)
        assert value(halfway, "ferrum_http_requests_in_flight") == 1
        assert ("ferrum_http_request_duration_seconds_count", ()) not in halfway
        assert snapshot(app).active_connections == 1
        assert snapshot(app).total_requests == 0
        go_on.set()
        response.read()
        connection.close()
        wait_until(lambda: snapshot(app).active_connections == 0)
    series = scrape(app)
    rule = {"method": "POST", "url_rule": "/stream"}
    head_s = value(series, "flask_http_request_duration_seconds_sum", **rule, status="200")
    assert value(series, "ferrum_http_request_duration_seconds_sum", **rule) > head_s
    assert value(series, "ferrum_ttft_seconds_count", model="tiny") == 1
    assert value(series, "ferrum_itl_seconds_count", model="tiny") == 1
    assert value(series, "ferrum_queue_wait_seconds_count", model="tiny") == 1


def test_met_05_a_client_that_leaves_frees_its_place_and_its_work() -> None:
    never = threading.Event()
    script: list[Step] = [chunk("a"), never]
    engine = ScriptedEngine(script)
    app = app_that_streams(engine)
    with serving(app) as address:
        with socket.create_connection((address.host, address.port), timeout=20) as client:
            client.sendall(b"POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
            assert snapshot(app).active_connections == 1
        wait_until(lambda: snapshot(app).active_connections == 0)
    assert engine.streams[0].closed.is_set()
    assert value(scrape(app), "ferrum_http_clients_left_total", url_rule="/stream") == 1


def test_the_engine_series_of_the_contract_are_there() -> None:
    app = create_app(ScriptedEngine(models=(model_info("tiny"), model_info("big"))))
    series = scrape(app)
    for model in ("tiny", "big"):
        for name, expected in {
            "ferrum_prompt_tokens_total": 300,
            "ferrum_prompt_tokens_evaluated_total": 200,
            "ferrum_generated_tokens_total": 42,
            "ferrum_prefix_hits_total": 1,
            "ferrum_prefix_tokens_saved_total": 100,
            "ferrum_preempted_total": 0,
            "ferrum_moved_total": 0,
            "ferrum_cancelled_total": 0,
            "ferrum_steps_total": 40,
            "ferrum_running_sequences": 0,
            "ferrum_queue_depth": 0,
            "ferrum_slots": 8,
            "ferrum_kv_cells_used": 10,
            "ferrum_kv_cells": 4096,
            "ferrum_model_load_seconds": 1.5,
        }.items():
            assert value(series, name, model=model) == expected
    assert value(series, "ferrum_state", state="ready") == 1
    assert value(series, "ferrum_state", state="loading") == 0
    assert value(series, "ferrum_requests_total", outcome="successful") == 0
    assert value(series, "ferrum_resident_memory_bytes") > 1_000_000


def test_openmetrics_is_served_to_those_who_ask() -> None:
    app = create_app(ScriptedEngine())
    app.test_client().get("/health").close()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = app.test_client().get("/metrics", headers=accept)
    assert response.content_type.startswith("application/openmetrics-text")
    assert "ferrum_http_requests" in {family.name for family in parse_openmetrics(response.text)}


def test_a_scrape_does_not_count_itself() -> None:
    app = create_app(ScriptedEngine())
    for _ in range(3):
        series = scrape(app)
    assert snapshot(app).total_requests == 0
    assert value(series, "ferrum_http_requests_in_flight") == 0
    assert not [key for key in series if dict(key[1]).get("url_rule") == "/metrics"]


def test_the_snapshot_says_what_the_series_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as start:
        start.setattr(time, "monotonic", lambda: 1000.0)
        app = create_app(ScriptedEngine())

    @app.get("/broken")
    def broken() -> str:
        raise RuntimeError

    @app.post("/read")
    def read() -> str:
        return str(len(request.get_data()))

    client = app.test_client()
    sent = 0
    for path in ("/health", "/health", "/none", "/broken"):
        sent += len(client.get(path, buffered=True).data)
    sent += len(client.post("/read", data=b"12345", buffered=True).data)
    with monkeypatch.context() as later:
        later.setattr(time, "monotonic", lambda: 4600.5)
        seen = snapshot(app)
        assert state(app).metrics.snapshot() == seen
    assert isinstance(seen, ServerMetrics)
    assert seen.total_requests == 5
    assert seen.requests_by_endpoint == {"/health": 2, "unmatched": 1, "/broken": 1, "/read": 1}
    assert seen.requests_by_status == {200: 3, 404: 1, 500: 1}
    assert seen.error_rate == 1 / 5
    assert (seen.bytes_sent, seen.bytes_received) == (sent, 5)
    assert 0 < seen.avg_response_time_ms
    assert 0 < seen.p95_response_time_ms <= seen.p99_response_time_ms
    assert seen.active_connections == 0
    assert seen.uptime_seconds == 3600
