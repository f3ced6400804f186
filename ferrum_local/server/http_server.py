"""The server inside another Python program: ``ferrum_local.HttpServer``."""

from __future__ import annotations

import enum
import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from flask import Flask
from flask.typing import RouteCallable

from ferrum_local.audio_types import AudioConfig
from ferrum_local.engine.contracts import Engine
from ferrum_local.errors import ModelLoadError
from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.metrics import ServerMetrics, snapshot
from ferrum_local.model_names import model_id_from_path
from ferrum_local.server.config import LAST_WORDS_S, LINGER_S, with_bound_host
from ferrum_local.server.engine_life import EngineLife
from ferrum_local.server.listener import Listener, bind
from ferrum_local.server.threaded import ThreadedServer
from ferrum_local.types import LlmOptions, ModelSpec

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger("ferrum_local.server")

_LOOK_S = 0.05  # how often it is asked whether an engine of the caller's is ready

Middleware: TypeAlias = "Callable[[WSGIApplication], WSGIApplication]"


class HealthStatus(str, enum.Enum):
    """``DEGRADED``: up, but it takes no requests now (loading or draining)."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class HttpServer:
    """Serves an engine over HTTP from threads of the program that made it.

    The shortest way, from a model file::

        from ferrum_local import HttpServer

        with HttpServer.from_models("models/qwen3-4b.gguf") as server:
            server.wait_ready()
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
            ...

    With an engine of your own, which then stays yours to load and to close::

        engine = LocalEngine([ModelSpec(id="qwen", path="qwen3-4b.gguf")], LlmOptions())
        engine.load()
        server = HttpServer(engine, HttpConfig(api_keys=("secret",)), port=8000)
        server.register_handler("/hello", "GET", lambda: "hello")
        server.start()

    It installs no signal handlers and configures no logging: both belong to the program.

    :param config: keys, origins and limits; None: the defaults.
    :param port: 0 takes any free one; see :attr:`address` once it runs.
    """

    def __init__(
        self,
        engine: Engine,
        config: HttpConfig | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._config = with_bound_host(config or HttpConfig(), host)
        self._host = host
        self._port = port
        self._engine = engine
        self._app: Flask = create_app(engine, self._config)
        self._middlewares: list[Middleware] = []
        self._life: EngineLife | None = None  # only if the engine is ours to load and close
        self._lock = threading.RLock()
        self._server: ThreadedServer | None = None
        self._listener: Listener | None = None

    @classmethod
    def from_models(
        cls,
        *models: str | Path | ModelSpec,
        options: LlmOptions | None = None,
        audio: AudioConfig | None = None,
        config: HttpConfig | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> HttpServer:
        """Make a server with an engine of its own, loaded by ``start`` and closed by ``stop``.

        :param models: GGUF files, each served under the name that ``ferrum-local serve``
            would give it (its file name without ``.gguf``), or
            :class:`~ferrum_local.types.ModelSpec` to choose the name.
        :param audio: Whisper models and voices.
        :raises ModelLoadError: a file is missing, damaged or no model.
        """
        from ferrum_local.engine.facade import LocalEngine
        from ferrum_local.llm.gguf_header import check_model_file

        specs = [m if isinstance(m, ModelSpec) else _spec(Path(m)) for m in models]
        for spec in specs:
            check_model_file(spec.path)
        any_model_name = config.any_model_name if config is not None else False
        engine = LocalEngine(
            specs, options or LlmOptions(), any_model_name=any_model_name, audio=audio
        )
        return cls._owning(engine, config, host, port)

    @classmethod
    def _owning(cls, engine: Engine, config: HttpConfig | None, host: str, port: int) -> HttpServer:
        server = cls(engine, config, host, port)
        server._life = EngineLife(
            engine,
            on_ready=lambda models: log.info("Ready: %s", ", ".join(models)),
            on_failed=lambda failure: log.error("%s", failure.message),
            on_closed=lambda: None,
        )
        return server

    def start(self) -> None:
        """Take the port and serve; returns at once. Does nothing if it runs already.

        Until the models are loaded, requests get a 503 and ``/health`` says ``loading``.

        :raises PortInUse: when another program has the port.
        :raises BindError: when the address cannot be listened on.
        :raises RuntimeError: after ``stop`` closed the server's own engine.
        """
        with self._lock:
            if self._server is not None:
                return
            if self._life is not None and self._life.is_draining:
                raise RuntimeError("This server's models are closed. Make a new HttpServer.")
            listener = bind(self._host, self._port)
            try:
                server = ThreadedServer(self._wrapped_app(), listener.sockets, config=self._config)
                server.start()
            except BaseException:
                listener.close()
                raise
            self._listener, self._server = listener, server
            if self._life is not None:
                self._life.start_loading()

    def stop(self, timeout: float = 30.0) -> None:
        """Close the port, give open requests ``timeout`` seconds, end the rest; blocks till then.

        An engine of the server's own is closed, and what still runs gets a last error event.
        With an engine of yours, connections that are still open are closed. Does nothing if
        it does not run.
        """
        with self._lock:
            server = self._server
            if server is None:
                return
            deadline = time.monotonic() + timeout
            server.stop_accepting()
            if self._life is not None:
                self._life.start_draining(grace_s=timeout)
            if not server.wait_idle(min(LINGER_S, timeout)):
                server.close_silent()
                last_words_s = LAST_WORDS_S if self._life is not None else 0.0
                remaining_s = max(0.0, deadline - time.monotonic())
                if not server.wait_idle(remaining_s + last_words_s):
                    server.cut_all()
            if self._life is not None:
                self._life.wait_closed(max(0.0, deadline - time.monotonic()) + LAST_WORDS_S)
            self._server = None
            self._listener = None

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Block until requests are answered. False: ``timeout`` seconds passed first.

        :raises ModelLoadError: when a model of the server's own engine cannot be loaded.
        """
        if self._life is None:
            until_s = math.inf if timeout is None else time.monotonic() + timeout
            while self._engine.status().state != "ready":
                if time.monotonic() >= until_s:
                    return False
                time.sleep(_LOOK_S)
            return True
        if not self._life.wait_loaded(timeout):
            return False
        if self._life.failure is not None:
            raise ModelLoadError(self._life.failure.message)
        return True

    @property
    def is_running(self) -> bool:
        """Whether the port is open."""
        return self._server is not None

    @property
    def address(self) -> tuple[str, int] | None:
        """(host, port) as bound, or None while it does not run."""
        listener = self._listener
        if listener is None or listener.port is None:
            return None
        return (listener.host, listener.port)

    @property
    def url(self) -> str | None:
        """Where clients on this machine reach it, or None while it does not run."""
        listener = self._listener
        return None if listener is None else listener.url

    def register_handler(self, path: str, method: str, handler: RouteCallable) -> None:
        """Add a route of your own, before ``start``. Keys, origins and metrics apply to it too.

        :param path: a Flask rule, as ``/tools/<name>``.
        :param method: ``GET``, ``POST`` and so on.
        :param handler: a Flask view: takes the path's variables, reads ``flask.request``,
            returns a string, a dict, bytes or a ``flask.Response``.
        :raises RuntimeError: when the server has been started.
        """
        self._refuse_once_running("register_handler")
        endpoint = f"{method.upper()} {path}".replace(".", "_")
        self._app.add_url_rule(path, endpoint, handler, methods=[method.upper()])

    def register_middleware(self, middleware: Middleware) -> None:
        """Wrap the application, before ``start``; the last one registered sees requests first.

        :param middleware: takes a WSGI application and returns one, as
            ``werkzeug.middleware`` has them.
        :raises RuntimeError: when the server has been started.
        """
        self._refuse_once_running("register_middleware")
        self._middlewares.append(middleware)

    def get_metrics(self) -> ServerMetrics:
        """Totals since this object was made, from the counters that ``/metrics`` shows."""
        return snapshot(self._app)

    def health_check(self) -> HealthStatus:
        """What ``/health`` says, in the three words of the trait."""
        if not self.is_running:
            return HealthStatus.UNHEALTHY
        state = self._engine.status().state
        if state == "ready":
            return HealthStatus.HEALTHY
        return HealthStatus.UNHEALTHY if state == "failed" else HealthStatus.DEGRADED

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _wrapped_app(self) -> WSGIApplication:
        app: WSGIApplication = self._app
        for middleware in self._middlewares:
            app = middleware(app)
        return app

    def _refuse_once_running(self, method: str) -> None:
        if self._server is not None:
            raise RuntimeError(f"Call {method} before start.")


def _spec(path: Path) -> ModelSpec:
    expanded = str(path.expanduser())
    return ModelSpec(id=model_id_from_path(expanded), path=expanded)
