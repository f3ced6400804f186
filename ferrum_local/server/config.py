"""Everything that a server process is started with."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ferrum_local.audio_types import AudioConfig
from ferrum_local.http.config import HttpConfig
from ferrum_local.types import LibraryOptions, LlmOptions, ModelSpec

Backend: TypeAlias = Literal["auto", "gunicorn", "werkzeug"]
LogFormat: TypeAlias = Literal["text", "json"]

BACKLOG = 512  # connections that wait to be accepted
# Threads beyond the streams, so that /health and other short requests always find one.
RESERVE_THREADS = 16
# While stopping: for a request that a client is just sending on an open connection.
LINGER_S = 0.5
# After the engine ended the last requests: for their last events to be written.
LAST_WORDS_S = 5.0
# A terminal sends Ctrl-C to all processes of a job, and some that wrap another (timeout, uv)
# pass it on as well: what comes this soon after the first is the same key press.
SAME_CTRL_C_S = 0.3


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What ``ferrum-local serve`` was asked for, after every source of settings was merged.

    ``port`` 0 takes any free one; None listens on ``socket`` alone. ``drain_timeout_s``: how long
    open requests may go on after the server was told to stop.

    For a program that starts the server: ``announce`` ``"json"`` is one line on stdout when ready,
    ``"events"`` all events (:mod:`ferrum_local.server.events`), which go to ``events_fd`` too;
    ``ready_file`` holds the ready line as long as requests are served, ``token_file`` a fresh key
    that is then needed. The server ends with the
    process that started it (``exit_with_parent``) or at the end of its stdin. ``insecure`` lets it
    listen beyond this machine without a key. ``offline`` refuses connections that leave the
    machine. ``instance_dir``: no second server may run with the same one.
    """

    models: tuple[ModelSpec, ...]
    host: str = "127.0.0.1"
    port: int | None = 8000
    socket: str | None = None
    llm: LlmOptions = LlmOptions()
    audio: AudioConfig = AudioConfig()
    library: LibraryOptions = LibraryOptions()
    http: HttpConfig = HttpConfig()
    drain_timeout_s: float = 30.0
    announce: Literal["json", "events"] | None = None
    events_fd: int | None = None
    ready_file: str | None = None
    token_file: str | None = None
    insecure: bool = False
    offline: bool = False
    instance_dir: str | None = None
    exit_with_parent: bool = False
    exit_on_stdin_close: bool = False
    log_format: LogFormat = "text"
    log_level: str = "info"


def with_bound_host(http: HttpConfig, host: str) -> HttpConfig:
    """The same settings, with the Host header judged by ``host``, the address listened on."""
    return msgspec.structs.replace(http, bound_host=host.strip("[]"))
