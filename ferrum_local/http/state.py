"""What the routes of one application share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import Flask, current_app

from ferrum_local.engine.contracts import Engine
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.departures import DepartureWatch
from ferrum_local.http.gate import StreamGate
from ferrum_local.http.images import ImageSource
from ferrum_local.http.metrics import HttpMetrics
from ferrum_local.http.remote_media import RemoteMedia
from ferrum_local.http.time_limits import TimeLimits
from ferrum_local.http.transcripts import TranscriptStore

EXTENSION = "ferrum"


@dataclass(frozen=True)
class AppState:
    """``started_at`` is seconds since the epoch. ``on_shutdown`` has the whole server stop; None:
    the server is part of another program, which stops it. ``remote_media`` fetches URLs that
    requests name; None: that is not allowed."""

    engine: Engine
    config: HttpConfig
    gate: StreamGate
    realtime_gate: StreamGate
    departures: DepartureWatch
    time_limits: TimeLimits
    metrics: HttpMetrics
    started_at: float
    transcripts: TranscriptStore
    on_shutdown: Callable[[], None] | None = None
    remote_media: RemoteMedia | None = None

    def images(self, is_gone: Callable[[], bool]) -> ImageSource:
        """What reads the images of one request, whose client may leave."""
        return ImageSource(self.config, self.remote_media, is_gone)


def state(app: Flask | None = None) -> AppState:
    """The state of ``app``, or of the application that handles the current request."""
    found = (app or current_app).extensions[EXTENSION]
    assert isinstance(found, AppState)
    return found
