"""The life of the server process: bind → load → announce → serve → drain → exit.

Importing this package is cheap; Flask, gunicorn and the runtimes are imported
only by the code that runs once :func:`serve` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrum_local.server.config import Backend, ServeConfig

__all__ = ["serve"]

LOCAL_ENGINE = "ferrum_local.engine.facade:LocalEngine"


def serve(
    config: ServeConfig, *, backend: Backend = "auto", engine_factory: str = LOCAL_ENGINE
) -> int:
    """Run the server until it is told to stop; call this from the main thread.

    Never raises for what a user can cause: the reason goes to the log as one line.

    :param backend: ``auto`` is gunicorn on Linux and macOS, Werkzeug elsewhere.
    :param engine_factory: ``module:callable`` that makes the engine; it is called as
        ``LocalEngine(models, options, any_model_name=…)`` where the engine shall live.
    :returns: the exit code of the command: 0 stopped as asked, 1 could not start or died,
        130 left at once on a second Ctrl-C.
    """
    from ferrum_local.server.life import run

    return run(config, backend=backend, engine_factory=engine_factory)
