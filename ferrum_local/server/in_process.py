"""The server in the command's own process, with Werkzeug's threaded server: for Windows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ferrum_local.server.announce import Announcer
from ferrum_local.server.config import (
    LAST_WORDS_S,
    LINGER_S,
    SAME_CTRL_C_S,
    ServeConfig,
)
from ferrum_local.server.engine_life import EngineLife, describe_failure, make_engine
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.server.lifelines import Lifeline
from ferrum_local.server.listener import Listener
from ferrum_local.server.signals import SignalInbox, stop_signals

if TYPE_CHECKING:
    from ferrum_local.server.threaded import ThreadedServer

log = logging.getLogger("ferrum_local.server")


def run_in_process(
    config: ServeConfig,
    listener: Listener,
    announcer: Announcer,
    *,
    engine_factory: str,
    lifelines: Sequence[Lifeline] = (),
) -> ExitCode:
    """Serve until told to stop. :returns: the exit code of the command."""
    with SignalInbox(stop_signals()) as inbox:
        shutdown_wanted = threading.Event()

        def on_shutdown() -> None:
            shutdown_wanted.set()
            inbox.wake()

        try:
            from ferrum_local.http.app import create_app
            from ferrum_local.server.threaded import ThreadedServer

            engine = make_engine(engine_factory, config)
            app = create_app(engine, config.http, on_shutdown=on_shutdown)
        except Exception as exc:
            announcer.fatal(*describe_failure(exc))
            return ExitCode.FAILED
        life = EngineLife(
            engine,
            on_progress=announcer.loading,
            on_ready=lambda models: announcer.ready(listener, models),
            on_failed=lambda _failure: inbox.wake(),
            on_closed=inbox.wake,
        )
        server = ThreadedServer(app, listener.sockets, config=config.http, on_idle=inbox.wake)
        server.start()
        life.start_loading()
        lines = {line.fileno(): line for line in lifelines}
        for fd in lines:
            inbox.watch(fd)
        while True:
            received, readable = inbox.wait()
            if life.failure is not None:
                announcer.fatal(*life.failure)
                return ExitCode.FAILED
            cut = [lines[fd].reason for fd in readable if fd in lines and lines[fd].is_cut()]
            reasons = [s.name for s in received] + ["shutdown_requested"] * shutdown_wanted.is_set()
            if cut or reasons:
                break
        if cut:  # it stays readable
            for fd in lines:
                inbox.unwatch(fd)
            lines.clear()
        grace_s = 0.0 if cut else config.drain_timeout_s
        announcer.draining((cut or reasons)[0], grace_s=grace_s)
        server.stop_accepting()
        listener.close()
        if _drain(server, life, inbox, lines, drain_timeout_s=grace_s):
            return ExitCode.STOPPED
        log.warning("Interrupted again: left at once")
        return ExitCode.INTERRUPTED


def _drain(
    server: ThreadedServer,
    life: EngineLife,
    inbox: SignalInbox,
    lines: Mapping[int, Lifeline],
    *,
    drain_timeout_s: float,
) -> bool:
    """Let open requests end, have the engine end the rest. A lifeline that is cut now hurries.

    :returns: False when a second Ctrl-C came first.
    """
    life.start_draining(grace_s=drain_timeout_s)
    started = time.monotonic()
    linger_until = started + LINGER_S
    deadline = started + drain_timeout_s + LAST_WORDS_S
    while server.n_connections > 0 or not life.is_closed:
        now = time.monotonic()
        if now >= deadline:
            log.warning("%d connections did not end in time and are cut", server.n_connections)
            server.cut_all()
            break
        if now >= linger_until:
            server.close_silent()
        wake_at = deadline if now >= linger_until else min(linger_until, deadline)
        received, readable = inbox.wait(wake_at - now)
        if any(fd in lines and lines[fd].is_cut() for fd in readable):
            break
        is_interrupted = any(s.name in ("SIGINT", "SIGBREAK") for s in received)
        if is_interrupted and time.monotonic() >= started + SAME_CTRL_C_S:
            return False
    return True
