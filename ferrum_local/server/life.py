"""Chooses the backend and runs it: the port is taken first, everything else comes after."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

import msgspec

from ferrum_local.errors import ConfigError, FerrumError
from ferrum_local.http.config import HttpConfig
from ferrum_local.processes import can_start_itself
from ferrum_local.server import listener as listening
from ferrum_local.server.announce import Announcer, tell_refused
from ferrum_local.server.config import Backend, ServeConfig, with_bound_host
from ferrum_local.server.engine_life import describe_failure
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.server.instance_lock import single_instance
from ferrum_local.server.launch_files import launch_key
from ferrum_local.server.lifelines import Lifeline, open_lifelines
from ferrum_local.server.logs import configure_logging
from ferrum_local.server.offline import keep_libraries_offline, refuse_connections

log = logging.getLogger("ferrum_local.server")


def run(config: ServeConfig, *, backend: Backend, engine_factory: str) -> int:
    """See :func:`ferrum_local.server.serve`."""
    _occupy_standard_fds()
    configure_logging(config.log_format, config.log_level, with_content=config.http.log_content)
    keep_libraries_offline()
    if config.offline:
        refuse_connections()
    try:
        announcer = Announcer(config)
    except ConfigError as exc:
        log.error("%s", exc.message)
        tell_refused(config.announce, config.events_fd, exc)
        return ExitCode.USAGE
    code = ExitCode.FAILED
    try:
        with open_lifelines(config) as lifelines:
            code = _listen(config, announcer, lifelines, backend, engine_factory)
    except FerrumError as exc:
        announcer.fatal(*describe_failure(exc))
        code = ExitCode.USAGE if isinstance(exc, ConfigError) else ExitCode.FAILED
    finally:
        announcer.exited(code)
    if code is ExitCode.INTERRUPTED:
        logging.shutdown()
        os._exit(code)  # threads may be in native code; none is waited for
    return code


def _listen(
    config: ServeConfig,
    announcer: Announcer,
    lifelines: Sequence[Lifeline],
    backend: Backend,
    engine_factory: str,
) -> ExitCode:
    with contextlib.ExitStack() as undo:
        instance = None
        if config.instance_dir is not None:
            instance = undo.enter_context(single_instance(config.instance_dir))
        listener = listening.listen(config)
        undo.callback(listener.close)
        if not (listener.is_local or config.insecure or config.token_file or config.http.needs_key):
            raise ConfigError(
                f"--host {config.host}: other machines could use this server without a key; give "
                "it one with --api-key-file, --api-key or --token-file, or allow that with "
                "--insecure"
            )
        key = undo.enter_context(launch_key(config.token_file)) if config.token_file else None
        config = msgspec.structs.replace(config, http=_http_as_bound(config, key))
        if instance is not None:
            instance.tell(listener.url if listener.port else f"unix:{listener.socket_path}")
        announcer.listening(listener, config)
        if _choose(backend) == "gunicorn":
            from ferrum_local.server.supervisor import Supervisor

            return Supervisor(
                config, listener, announcer, engine_factory=engine_factory, lifelines=lifelines
            ).run()
        from ferrum_local.server.in_process import run_in_process

        return run_in_process(
            config, listener, announcer, engine_factory=engine_factory, lifelines=lifelines
        )


def _http_as_bound(config: ServeConfig, key: str | None) -> HttpConfig:
    http = with_bound_host(config.http, config.host)
    return msgspec.structs.replace(
        http,
        launch_key=key,
        owner_only=config.port is None,
    )


def _choose(backend: Backend) -> Backend:
    if backend != "auto":
        return backend
    return "gunicorn" if os.name == "posix" and can_start_itself() else "werkzeug"


def _occupy_standard_fds() -> None:
    """Started with stdin, stdout or stderr closed, the port would get their number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
