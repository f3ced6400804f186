"""The server in the command's own process, with Werkzeug's threaded server: for Windows."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from ferrum_local.server.announce import say_ready, say_stopping
from ferrum_local.server.config import (
    EXIT_INTERRUPTED,
    LAST_WORDS_S,
    LINGER_S,
    SAME_CTRL_C_S,
    ServeConfig,
)
from ferrum_local.server.engine_life import EngineLife, describe_failure, make_engine
from ferrum_local.server.listener import Listener
from ferrum_local.server.signals import SignalInbox, stop_signals

if TYPE_CHECKING:
    from ferrum_local.server.threaded import ThreadedServer

log = logging.getLogger("ferrum_local.server")


def run_in_process(config: ServeConfig, listener: Listener, *, engine_factory: str) -> int:
    """Serve until told to stop. :returns: the exit code of the command."""
    with SignalInbox(stop_signals()) as inbox:
        try:
            from ferrum_local.http.app import create_app
            from ferrum_local.server.threaded import ThreadedServer

            engine = make_engine(engine_factory, config)
            app = create_app(engine, config.http)
        except Exception as exc:
            log.error("%s", describe_failure(exc))
            return 1
        life = EngineLife(
            engine,
            on_ready=lambda models: say_ready(config, listener, models),
            on_failed=lambda _reason: inbox.wake(),
            on_closed=inbox.wake,
        )
        server = ThreadedServer(
            app, listener.sockets, max_streams=config.http.max_streams, on_idle=inbox.wake
        )
        server.start()
        life.start_loading()
        received: list[signal.Signals] = []
        while not received:
            received, _ = inbox.wait()
            if life.failure is not None:
                log.error("%s", life.failure)
                return 1
        say_stopping(config, received[0])
        return _drain(server, life, inbox, drain_timeout_s=config.drain_timeout_s)


def _drain(
    server: ThreadedServer, life: EngineLife, inbox: SignalInbox, *, drain_timeout_s: float
) -> int:
    """Close the port, let open requests end, have the engine end the rest."""
    server.stop_accepting()
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
        received, _ = inbox.wait(wake_at - now)
        is_interrupted = any(s.name in ("SIGINT", "SIGBREAK") for s in received)
        if is_interrupted and time.monotonic() >= started + SAME_CTRL_C_S:
            log.warning("Interrupted again: left at once")
            logging.shutdown()
            os._exit(EXIT_INTERRUPTED)  # threads may be in native code; none is waited for
    return 0
