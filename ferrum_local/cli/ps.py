"""``ferrum-local ps``: what a running server is doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ferrum_local.cli.server_address import connect, server_options

if TYPE_CHECKING:
    from ferrum_local.cli.client import ServerClient

_ANSWER_TIMEOUT_S = 10.0
_UNAUTHORIZED = 401
_NOT_READY = 503  # /health has the same body then


class ModelActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One model. ``slots_used`` of ``slots`` answer right now; both None for other kinds.

    ``running`` and ``waiting`` are sequences, transcriptions or clauses of speech.
    """

    id: str
    kind: str
    state: str
    error: str | None = None
    size_bytes: int | None = None
    context_length: int | None = None
    running: int | None = None
    waiting: int | None = None
    slots: int | None = None


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A server right now. None: it tells that only to those who have its key."""

    url: str
    version: str
    status: str
    active_requests: int
    queued_requests: int
    memory_bytes: int | None
    models: tuple[ModelActivity, ...]


def look_at(client: ServerClient) -> Activity:
    """:raises ServerUnreachable: nothing listens. FerrumError: something else answers."""
    from ferrum_local.cli.client import ServerRefused
    from ferrum_local.errors import FerrumError

    health = client.get("/health", allowed=(_NOT_READY,))
    details: dict[str, Any] = {}
    series: dict[tuple[str, str], float] = {}
    try:
        details = {model["id"]: model for model in client.get("/v1/models")["data"]}
        series = _series(client.get_text("/metrics"))
    except ServerRefused as error:
        if error.status != _UNAUTHORIZED:
            raise
    try:
        engine = health["engine"]
        return Activity(
            url=client.url,
            version=health["version"],
            status=health["status"],
            active_requests=engine["active_requests"],
            queued_requests=engine["queued_requests"],
            memory_bytes=_count(series, "ferrum_resident_memory_bytes"),
            models=tuple(
                _model(model, details.get(model["id"], {}), series) for model in health["models"]
            ),
        )
    except (KeyError, TypeError):
        raise FerrumError(f"What answers at {client.url} is no ferrum-local.") from None


def _model(
    model: Mapping[str, Any], details: Mapping[str, Any], series: Mapping[tuple[str, str], float]
) -> ModelActivity:
    id_ = model["id"]
    running = _count(series, "ferrum_running_sequences", id_)
    waiting = _count(series, "ferrum_queue_depth", id_)
    return ModelActivity(
        id=id_,
        kind=model["kind"],
        state=model["state"],
        error=model.get("error"),
        size_bytes=details.get("size_bytes"),
        context_length=details.get("context_length") or None,
        running=_count(series, "ferrum_audio_running", id_) if running is None else running,
        waiting=_count(series, "ferrum_audio_waiting", id_) if waiting is None else waiting,
        slots=_count(series, "ferrum_slots", id_),
    )


def _series(text: str) -> dict[tuple[str, str], float]:
    """Values by name and model; for those without a model, it is empty."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, sample.labels.get("model", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _count(series: Mapping[tuple[str, str], float], name: str, model: str = "") -> int | None:
    value = series.get((name, model))
    return None if value is None else int(value)


def _show(activity: Activity) -> None:
    from ferrum_local.cli.tables import amount, print_table

    memory = "" if activity.memory_bytes is None else f", {amount(activity.memory_bytes)} of memory"
    click.echo(f"ferrum-local {activity.version} at {activity.url}: {activity.status}{memory}")
    click.echo(f"{activity.active_requests} running, {activity.queued_requests} waiting", nl=True)
    rows = [
        (
            model.id,
            model.kind,
            model.state if model.error is None else f"{model.state}: {model.error}",
            "" if model.size_bytes is None else amount(model.size_bytes),
            "" if model.context_length is None else str(model.context_length),
            _busy(model),
        )
        for model in activity.models
    ]
    if rows:
        print_table(("model", "kind", "state", "size", "context", "busy"), rows)


def _busy(model: ModelActivity) -> str:
    if model.running is None:
        return ""
    of = f" of {model.slots} slots" if model.slots else ""
    waiting = f", {model.waiting} waiting" if model.waiting else ""
    return f"{model.running}{of}{waiting}"


@click.command(name="ps", short_help="Show what a running server does.")
@server_options("The server to look at.  [where `serve` would listen]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def ps_command(url: str | None, api_key: str | None, as_json: bool) -> int:
    """Show the models of a running server, their state, memory, slots and requests."""
    activity = look_at(connect(url, api_key, answer_timeout_s=_ANSWER_TIMEOUT_S))
    if as_json:
        click.echo(msgspec.json.encode(activity).decode())
    else:
        _show(activity)
    return 0
