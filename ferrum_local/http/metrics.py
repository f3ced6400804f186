"""HTTP series for Prometheus, and the same counters as one plain struct.

Two durations exist for a reply: ``flask_http_request_duration_seconds`` (from
prometheus-flask-exporter) ends when its head is ready, ``ferrum_http_request_duration_seconds``
when its last byte was sent. For a stream these differ by the whole answer.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import msgspec
from flask import Flask, Request, request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample
from prometheus_flask_exporter import PrometheusMetrics

from ferrum_local.engine.contracts import Engine
from ferrum_local.http.engine_series import EngineSeries, LatencyObserver
from ferrum_local.http.request_context import UNMATCHED_ROUTE, RequestRecord

METRICS_PATH = "/metrics"  # not counted: a scrape would otherwise measure itself
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "OTHER"
DURATION_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since start. Times run to the last byte; the percentiles are estimated from the
    histogram's buckets. ``error_rate`` is the share of replies with a status from 500 up."""

    total_requests: int
    requests_by_endpoint: dict[str, int]
    requests_by_status: dict[int, int]
    avg_response_time_ms: float
    p95_response_time_ms: float
    p99_response_time_ms: float
    active_connections: int
    bytes_sent: int
    bytes_received: int
    error_rate: float
    uptime_seconds: int


class HttpMetrics:
    """The series of one application, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._started_s = time.monotonic()
        self._requests = Counter(
            "ferrum_http_requests",
            "Replies by method, url rule and status.",
            ("method", "url_rule", "status"),
            registry=self.registry,
        )
        self._duration = Histogram(
            "ferrum_http_request_duration_seconds",
            "Time from a request's arrival to the last byte of its reply.",
            ("method", "url_rule"),
            buckets=DURATION_BUCKETS_S,
            registry=self.registry,
        )
        self._in_flight = Gauge(
            "ferrum_http_requests_in_flight",
            "Requests whose reply is not sent to its end yet.",
            registry=self.registry,
        )
        self._lock = threading.Lock()
        self._n_in_flight = 0
        self._in_flight.set_function(lambda: self._n_in_flight)
        self._clients_left = Counter(
            "ferrum_http_clients_left",
            "Replies that were given up because the client was gone.",
            ("url_rule",),
            registry=self.registry,
        )
        self._bytes_sent = Counter(
            "ferrum_http_response_bytes", "Bytes of reply bodies.", registry=self.registry
        )
        self._bytes_received = Counter(
            "ferrum_http_request_bytes", "Bytes of request bodies.", registry=self.registry
        )
        self.registry.register(EngineSeries(engine))
        engine.add_observer(LatencyObserver(self.registry))

    def install(self, app: Flask) -> None:
        """Add the exporter's own series, by url rule."""
        PrometheusMetrics(app, path=None, group_by=url_rule, registry=self.registry)

        @app.before_request
        def leave_out() -> None:
            # The exporter labels with the method as sent: made-up ones would add series for ever.
            if request.method not in KNOWN_METHODS or request.path == METRICS_PATH:
                setattr(request, "prom_do_not_track", True)  # noqa: B010

    @property
    def n_in_flight(self) -> int:
        """Requests whose reply is not sent to its end yet."""
        return self._n_in_flight

    def request_started(self, record: RequestRecord) -> None:
        if record.path != METRICS_PATH:
            with self._lock:
                self._n_in_flight += 1

    def request_ended(self, record: RequestRecord) -> None:
        if record.path == METRICS_PATH:
            return
        method = record.method if record.method in KNOWN_METHODS else OTHER_METHOD
        self._requests.labels(method, record.route, str(record.status)).inc()
        self._duration.labels(method, record.route).observe(record.duration_s)
        self._bytes_sent.inc(record.bytes_sent)
        self._bytes_received.inc(record.bytes_received)
        if record.client_left:
            self._clients_left.labels(record.route).inc()
        with self._lock:
            self._n_in_flight -= 1  # last: who sees that nothing is open sees all of it counted

    def exposition(self, accept: str | None) -> tuple[bytes, str]:
        """Everything in the text format that ``accept`` asks for, and its content type."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self.registry), content_type

    def snapshot(self) -> ServerMetrics:
        by_endpoint: dict[str, int] = defaultdict(int)
        by_status: dict[int, int] = defaultdict(int)
        for sample in _samples(self._requests, "_total"):
            by_endpoint[sample.labels["url_rule"]] += int(sample.value)
            by_status[int(sample.labels["status"])] += int(sample.value)
        total = sum(by_status.values())
        failed = sum(count for status, count in by_status.items() if status >= 500)

        buckets: dict[float, float] = defaultdict(float)
        for sample in _samples(self._duration, "_bucket"):
            buckets[float(sample.labels["le"])] += sample.value
        n_timed = sum(sample.value for sample in _samples(self._duration, "_count"))
        sum_s = sum(sample.value for sample in _samples(self._duration, "_sum"))
        return ServerMetrics(
            total_requests=total,
            requests_by_endpoint=dict(by_endpoint),
            requests_by_status=dict(by_status),
            avg_response_time_ms=1000 * sum_s / n_timed if n_timed else 0.0,
            p95_response_time_ms=1000 * quantile(0.95, buckets),
            p99_response_time_ms=1000 * quantile(0.99, buckets),
            active_connections=int(next(_samples(self._in_flight, "")).value),
            bytes_sent=int(next(_samples(self._bytes_sent, "_total")).value),
            bytes_received=int(next(_samples(self._bytes_received, "_total")).value),
            error_rate=failed / total if total else 0.0,
            uptime_seconds=int(time.monotonic() - self._started_s),
        )


def snapshot(app: Flask) -> ServerMetrics:
    """The totals of ``app``, from the counters that ``/metrics`` shows."""
    from ferrum_local.http.state import state

    return state(app).metrics.snapshot()


def url_rule(req: Request) -> str:
    """The label value for the exporter; its name is the label's name."""
    return req.url_rule.rule if req.url_rule is not None else UNMATCHED_ROUTE


def quantile(q: float, buckets: dict[float, float]) -> float:
    """Estimate a quantile from cumulative bucket counts, as PromQL's histogram_quantile does.

    :param buckets: upper bound (the last one infinite) → observations up to it.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] == 0:
        return 0.0
    wanted = q * buckets[bounds[-1]]
    lower_bound, lower_count = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if bound == float("inf"):
                return lower_bound
            share = (wanted - lower_count) / (buckets[bound] - lower_count)
            return lower_bound + (bound - lower_bound) * share
        lower_bound, lower_count = bound, buckets[bound]
    return lower_bound


def _samples(metric: Counter | Gauge | Histogram, suffix: str) -> Iterator[Sample]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name == family.name + suffix:
                yield sample
