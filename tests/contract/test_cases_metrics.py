"""Metric cases on the server that people run, read as a scraper reads them."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.server.http_server import HttpServer
from tests.contract.live import (
    CHAT,
    COMPLETIONS,
    Series,
    load,
    scrape,
    stream_events,
    value,
    wait_idle,
)
from tests.contract.raw import post
from tests.fakes import wait_until

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say hello in one short sentence."}],
    "max_tokens": 8,
    "ignore_eos": True,
}
ENGINE_SERIES = {
    "ferrum_prompt_tokens_total", "ferrum_prompt_tokens_evaluated_total",
    "ferrum_generated_tokens_total", "ferrum_prefix_hits_total",
    "ferrum_prefix_tokens_saved_total", "ferrum_preempted_total", "ferrum_cancelled_total",
    "ferrum_running_sequences", "ferrum_queue_depth", "ferrum_kv_cells_used", "ferrum_kv_cells",
    "ferrum_ttft_seconds_count", "ferrum_itl_seconds_count", "ferrum_queue_wait_seconds_count",
    "ferrum_model_load_seconds",
}  # fmt: skip


def get_all(url: str, paths: list[str], method: str = "GET") -> set[int]:
    """The statuses of all ``paths``, asked over one connection."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    statuses = set()
    try:
        for path in paths:
            connection.request(method, path)
            response = connection.getresponse()
            response.read()
            statuses.add(response.status)
    finally:
        connection.close()
    return statuses


def rule_labels(series: Series) -> set[str]:
    return {dict(labels)["url_rule"] for _, labels in series if "url_rule" in dict(labels)}


def test_met_01_a_thousand_unknown_paths_add_no_series(server: Any) -> None:
    assert get_all(server.url, ["/first.php", "/v1/first"]) == {404}
    wait_idle(server)  # both are counted
    before = scrape(server.url)
    paths = [f"/{('wp', 'v1', 'v1/modelz', '%2e%2e')[i % 4]}/{i}.php" for i in range(1000)]
    assert get_all(server.url, paths) == {404}
    labels = {"method": "GET", "status": "404", "url_rule": "unmatched"}
    name = "ferrum_http_requests_total"
    # A request counts once its reply was sent, which its client may see a little earlier.
    expected = value(before, name, **labels) + 1000
    wait_until(lambda: value(scrape(server.url), name, **labels) == expected)
    assert set(scrape(server.url)) == set(before)


def test_met_02_two_hundred_model_ids_are_one_series(server: Any) -> None:
    assert get_all(server.url, ["/v1/models/x", f"/v1/models/{server.model}"]) == {200, 404}
    wait_idle(server)
    before = scrape(server.url)
    assert get_all(server.url, [f"/v1/models/id-{i}" for i in range(200)]) == {404}
    # The model's name in a body is no label either.
    for i in range(5):
        assert post(server.url, CHAT, {**ASK, "model": f"id-{i}"}).status == 404
    after = scrape(server.url)
    new = {key for key in set(after) - set(before) if "/v1/models" in str(key)}
    assert not new
    assert not any("id-" in label for _, labels in after for _, label in labels)
    assert "/v1/models/<model_id:model_id>" in rule_labels(after)


def test_met_03_two_servers_in_one_process_count_apart(engine: LocalEngine) -> None:
    with HttpServer(engine) as first, HttpServer(engine) as second:
        assert get_all(str(first.url), ["/health"] * 3) == {200}
        wait_until(lambda: first.get_metrics().total_requests == 3)
        labels = {"method": "GET", "status": "200", "url_rule": "/health"}
        assert value(scrape(str(first.url)), "ferrum_http_requests_total", **labels) == 3
        counted = scrape(str(second.url))
        assert ("ferrum_http_requests_total", tuple(sorted(labels.items()))) not in counted
        assert second.get_metrics().total_requests == 0
    # Once more on the same engine: nothing is left of the first two.
    with HttpServer(engine) as third:
        assert get_all(str(third.url), ["/health"]) == {200}
        wait_until(lambda: third.get_metrics().total_requests == 1)


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, ASK), (COMPLETIONS, {**ASK, "prompt": "One two"})]
)
def test_met_05_a_stream_counts_from_arrival_to_its_last_byte(
    server: Any, path: str, body: dict[str, Any]
) -> None:
    body = {k: v for k, v in body.items() if path == CHAT or k != "messages"}
    wait_idle(server)
    # One of each kind first, so that every series exists.
    assert len(list(stream_events(server, path, body)))
    wait_idle(server)
    before = scrape(server.url)
    stream = stream_events(server, path, {**body, "max_tokens": 60})
    next(stream)
    assert load(server).in_flight == 1
    timings = list(stream)[-1]["timings"]
    wait_idle(server)
    after = scrape(server.url)

    def gained(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    rule = {"method": "POST", "url_rule": path}
    model = {"model": server.model}
    total_s = gained("ferrum_http_request_duration_seconds_sum", **rule)
    head_s = gained("flask_http_request_duration_seconds_sum", **rule, status="200")
    assert gained("ferrum_http_request_duration_seconds_count", **rule) == 1
    assert gained("ferrum_ttft_seconds_count", **model) == 1
    assert gained("ferrum_queue_wait_seconds_count", **model) == 1
    assert gained("ferrum_itl_seconds_count", **model) == 59
    assert gained("ferrum_generated_tokens_total", **model) == 60
    ttft_s = gained("ferrum_ttft_seconds_sum", **model)
    # Headers leave before the first token, and the whole takes longer than either.
    assert total_s > head_s
    assert total_s > ttft_s
    assert total_s >= ttft_s + gained("ferrum_itl_seconds_sum", **model)
    assert ttft_s == pytest.approx(timings["ttft_ms"] / 1e3, abs=1e-3)


def test_met_05_gauges_return_to_zero_when_clients_leave(server: Any) -> None:
    wait_idle(server)
    before = scrape(server.url)
    streams = [stream_events(server, CHAT, {**ASK, "max_tokens": 1900}) for _ in range(3)]
    for stream in streams:
        next(stream)
    assert load(server).in_flight == 3
    wait_until(lambda: load(server).running == 3, 60)
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    wait_idle(server)
    after = scrape(server.url)
    name = "ferrum_http_clients_left_total"
    key = (name, (("url_rule", CHAT),))
    assert after[key] - before.get(key, 0) == 3


def test_the_series_of_the_contract_are_on_a_real_server(server: Any) -> None:
    assert post(server.url, CHAT, {**ASK, "stream": True}).status == 200
    series = scrape(server.url)
    of_model = {name for name, labels in series if dict(labels).get("model") == server.model}
    assert ENGINE_SERIES <= of_model
    assert value(series, "ferrum_kv_cells_used", model=server.model) > 0
    assert value(series, "ferrum_resident_memory_bytes") > 50e6
    assert value(series, "ferrum_state", state="ready") == 1
