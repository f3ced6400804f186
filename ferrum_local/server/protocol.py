"""What the supervisor and its worker say to each other: one JSON object a line."""

from __future__ import annotations

import json
from typing import TypeAlias, TypeVar

import msgspec

from ferrum_local.server.config import ServeConfig

Message = TypeVar("Message", bound="WorkerBoot | StopOrder")

WORKER_GAVE_UP = 10  # the worker's exit code when it has reported why; no restart would help


class WorkerBoot(msgspec.Struct, frozen=True, kw_only=True):
    """Down, first. The fds are open in the worker under these numbers.

    ``supervisor_pid`` is set where the worker has to be killed with its supervisor.
    """

    config: ServeConfig
    engine_factory: str
    socket_fds: tuple[int, ...]
    status_fd: int
    supervisor_pid: int | None = None


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Down, before a SIGTERM that shall leave running requests another time than usual."""

    grace_s: float


class _Report(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", tag=str.lower):
    """Up, as things happen."""


class Progress(_Report, frozen=True):
    model: str
    percent: int


class Loaded(_Report, frozen=True):
    models: tuple[str, ...]


class Failed(_Report, frozen=True):
    """The worker gives up, for this reason."""

    code: str
    message: str


class StopWanted(_Report, frozen=True):
    """A client asked for the end of the server."""


WorkerReport: TypeAlias = Progress | Loaded | Failed | StopWanted


def encode_down(message: WorkerBoot | StopOrder) -> bytes:
    """One line. Python's own JSON also carries file names that are not UTF-8."""
    return json.dumps(msgspec.to_builtins(message)).encode("ascii") + b"\n"


def decode_down(line: bytes, kind: type[Message]) -> Message:
    return msgspec.convert(json.loads(line), kind)
