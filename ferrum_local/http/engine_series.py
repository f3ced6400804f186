"""The engine's own numbers as ``ferrum_*`` series for Prometheus."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import psutil
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ferrum_local import __version__
from ferrum_local.engine.contracts import Engine, ModelMetrics, SpeechMetrics

STATES = ("loading", "ready", "draining", "failed")

# series, the ModelMetrics field behind it, help
MODEL_COUNTERS = (
    ("ferrum_prompt_tokens", "prompt_tokens_total", "Prompt tokens asked for, cached included."),
    (
        "ferrum_prompt_tokens_evaluated",
        "prompt_tokens_evaluated_total",
        "Prompt tokens that had to be computed.",
    ),
    ("ferrum_generated_tokens", "generated_tokens_total", "Tokens generated."),
    ("ferrum_prefix_hits", "prefix_hits_total", "Requests that found a prefix in the cache."),
    (
        "ferrum_prefix_tokens_saved",
        "prefix_tokens_saved_total",
        "Prompt tokens taken from the cache.",
    ),
    ("ferrum_steps", "steps_total", "Decode steps (llama_decode calls)."),
    ("ferrum_draft_tokens", "draft_tokens_total", "Tokens guessed by prompt lookup."),
    (
        "ferrum_draft_tokens_accepted",
        "draft_tokens_accepted_total",
        "Guessed tokens that the model confirmed.",
    ),
    ("ferrum_preempted", "preempted_total", "Sequences put back in the queue for lack of room."),
    ("ferrum_moved", "moved_total", "Running sequences moved to a neighbouring slot."),
    ("ferrum_cancelled", "cancelled_total", "Requests cancelled."),
)
MODEL_GAUGES = (
    ("ferrum_running_sequences", "running_sequences", "Sequences decoded together right now."),
    ("ferrum_queue_depth", "waiting_requests", "Requests that wait for a slot."),
    ("ferrum_slots", "slots", "Sequences that can be decoded together."),
    ("ferrum_kv_cells_used", "kv_cells_used", "Cells of the KV cache in use."),
    ("ferrum_kv_cells", "kv_cells_total", "Cells of the KV cache."),
    ("ferrum_model_load_seconds", "load_time_s", "Time that loading the model took."),
)

# Real-time factor: rate(busy seconds) / rate(audio seconds).
SPEECH_COUNTERS = (
    ("ferrum_audio_seconds", "audio_seconds_total", "Seconds of sound heard or spoken."),
    ("ferrum_audio_busy_seconds", "busy_seconds_total", "Seconds that this took."),
    ("ferrum_audio_requests", "requests_total", "Transcriptions or texts begun."),
)
SPEECH_GAUGES = (
    ("ferrum_audio_running", "running", "Transcriptions, or clauses of speech, right now."),
    ("ferrum_audio_waiting", "waiting", "What waits for its turn."),
    ("ferrum_audio_model_load_seconds", "load_time_s", "Time that loading the model took."),
)

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
QUEUE_WAIT_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)


class EngineSeries(Collector):
    """Reads the engine when it is scraped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process = psutil.Process()

    def collect(self) -> Iterable[Metric]:
        metrics = self._engine.metrics()
        status = self._engine.status()
        yield _gauge("ferrum_build_info", "Version of ferrum-local.", {"version": __version__}, 1)

        states = GaugeMetricFamily("ferrum_state", "1 for the engine's state.", labels=["state"])
        for name in STATES:
            states.add_metric([name], float(status.state == name))
        yield states

        requests = CounterMetricFamily(
            "ferrum_requests", "Requests that the engine finished.", labels=["outcome"]
        )
        requests.add_metric(["successful"], metrics.successful_requests)
        requests.add_metric(["failed"], metrics.failed_requests)
        requests.add_metric(["cancelled"], metrics.cancelled_requests)
        yield requests
        yield _gauge("ferrum_active_requests", "Requests running.", {}, status.active_requests)
        yield _gauge(
            "ferrum_requests_per_second",
            "Requests finished a second, over the last minute.",
            {},
            metrics.throughput_rps,
        )
        yield _gauge(
            "ferrum_resident_memory_bytes",
            "Memory of this process that is in RAM.",
            {},
            self._process.memory_info().rss,
        )
        yield from _model_series(metrics.models)
        if metrics.speech:
            yield from _speech_series(metrics.speech)


class LatencyObserver:
    """Feeds the histograms that the engine's request threads report to."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ttft = Histogram(
            "ferrum_ttft_seconds",
            "Time from a request's arrival to its first token.",
            ("model",),
            buckets=TTFT_BUCKETS_S,
            registry=registry,
        )
        self._itl = Histogram(
            "ferrum_itl_seconds",
            "Time between two tokens of a sequence.",
            ("model",),
            buckets=ITL_BUCKETS_S,
            registry=registry,
        )
        self._itl_of = functools.cache(self._itl.labels)  # for each token: without their lock
        self._queue_wait = Histogram(
            "ferrum_queue_wait_seconds",
            "Time that a request waited for a slot.",
            ("model",),
            buckets=QUEUE_WAIT_BUCKETS_S,
            registry=registry,
        )

    def on_first_token(self, model_id: str, ttft_s: float) -> None:
        self._ttft.labels(model_id).observe(ttft_s)

    def on_token_gap(self, model_id: str, itl_s: float) -> None:
        self._itl_of(model_id).observe(itl_s)

    def on_queue_wait(self, model_id: str, wait_s: float) -> None:
        self._queue_wait.labels(model_id).observe(wait_s)


def _model_series(models: Iterable[ModelMetrics]) -> Iterable[Metric]:
    models = tuple(models)
    for name, field, help_text in MODEL_COUNTERS:
        counter = CounterMetricFamily(name, help_text, labels=["model"])
        for model in models:
            counter.add_metric([model.model_id], getattr(model, field))
        yield counter
    for name, field, help_text in MODEL_GAUGES:
        gauge = GaugeMetricFamily(name, help_text, labels=["model"])
        for model in models:
            gauge.add_metric([model.model_id], getattr(model, field))
        yield gauge


def _speech_series(models: Iterable[SpeechMetrics]) -> Iterable[Metric]:
    for name, field, help_text in SPEECH_COUNTERS:
        counter = CounterMetricFamily(name, help_text, labels=["model", "kind"])
        for model in models:
            counter.add_metric([model.model_id, model.kind], getattr(model, field))
        yield counter
    for name, field, help_text in SPEECH_GAUGES:
        gauge = GaugeMetricFamily(name, help_text, labels=["model", "kind"])
        for model in models:
            gauge.add_metric([model.model_id, model.kind], getattr(model, field))
        yield gauge


def _gauge(name: str, help_text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
