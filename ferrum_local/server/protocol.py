"""What the supervisor and its worker say to each other: one JSON object a line."""

from __future__ import annotations

import msgspec

from ferrum_local.server.config import ServeConfig

EXIT_FAILED = 3  # the worker gave up and has reported why; no restart would help


class WorkerBoot(msgspec.Struct, frozen=True, kw_only=True):
    """Down, once. The fds are open in the worker under these numbers."""

    config: ServeConfig
    engine_factory: str
    socket_fds: tuple[int, ...]
    status_fd: int


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """Up: ready with these ``models``, or failed for this reason."""

    models: tuple[str, ...] = ()
    failure: str | None = None
