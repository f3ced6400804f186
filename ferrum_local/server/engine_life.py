"""The engine's part of the server's life: made, loaded in the background, drained, closed."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple, cast

from ferrum_local.engine.contracts import Engine
from ferrum_local.errors import FerrumError
from ferrum_local.server.config import ServeConfig
from ferrum_local.types import LibraryOptions

log = logging.getLogger("ferrum_local.server")


INTERNAL_ERROR = "internal_error"  # the code of what no FerrumError names


class Failure(NamedTuple):
    """Why a server cannot go on. ``code`` is for programs, ``message`` for people."""

    code: str
    message: str


def make_engine(factory: str, config: ServeConfig) -> Engine:
    """Call the ``module:callable`` that ``factory`` names. Nothing is loaded yet."""
    module, _, name = factory.partition(":")
    make = getattr(importlib.import_module(module), name)
    more: dict[str, object] = {"audio": config.audio} if config.audio else {}
    if config.library != LibraryOptions():
        more["library"] = config.library
    engine = make(config.models, config.llm, any_model_name=config.http.any_model_name, **more)
    return cast(Engine, engine)


class EngineLife:
    """Loads and closes an engine on threads of its own, so that serving goes on meanwhile.

    The callbacks are called from those threads, each at most once.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_ready: Callable[[tuple[str, ...]], None],
        on_failed: Callable[[Failure], None],
        on_closed: Callable[[], None],
        on_progress: Callable[[str, int], None] | None = None,
    ) -> None:
        """:param on_ready: gets the ids of the loaded models.
        :param on_progress: gets a model's id and how many percent of it are loaded.
        """
        self.engine = engine
        self._on_progress = on_progress
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._draining = False
        self._loader = threading.Thread(target=self._load, name="loader", daemon=True)
        self._may_tell = threading.Event()
        self._loaded = threading.Event()
        self._closed = threading.Event()
        self.failure: Failure | None = None

    def load_early(self) -> None:
        """Begin to load; how it ended is told once ``start_loading`` is called."""
        self._loader.start()

    def start_loading(self) -> None:
        self._may_tell.set()
        if self._loader.ident is None:
            self._loader.start()

    def start_draining(self, *, grace_s: float) -> None:
        """Refuse new requests; give running ones ``grace_s``, then end them and free the models.

        Returns at once. Calling it again changes nothing.
        """
        with self._lock:
            if self._draining:
                return
            self._draining = True
            loaded = self._loaded.is_set()
            self._may_tell.set()  # which then tells nothing
        self.engine.start_draining()
        if loaded:
            threading.Thread(
                target=self._close, args=(grace_s,), name="closer", daemon=True
            ).start()
        else:
            # Nothing runs yet, and a load in native code cannot be hurried: whoever stops need
            # not wait for it. Should the process live on, _load closes the engine in its time.
            self._closed.set()
            self._on_closed()

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def wait_loaded(self, timeout_s: float | None) -> bool:
        """False: the time passed. True: loaded, or failed (then ``failure`` says why)."""
        return self._loaded.wait(timeout_s)

    def wait_closed(self, timeout_s: float | None) -> bool:
        return self._closed.wait(timeout_s)

    def _load(self) -> None:
        models: tuple[str, ...] = ()
        failure: Failure | None = None
        try:
            if self._on_progress is not None:
                self.engine.watch_loading(_Rising(self._on_progress))
            self.engine.load()
            models = self.engine.status().loaded_models
        except Exception as exc:
            failure = describe_failure(exc)
        self._may_tell.wait()
        with self._lock:
            self.failure = failure
            draining = self._draining
            self._loaded.set()
        if draining:
            self.engine.close()
        elif failure is not None:
            self._on_failed(failure)
        else:
            self._on_ready(models)

    def _close(self, grace_s: float) -> None:
        try:
            self.engine.close(grace_s=grace_s)
        except Exception:
            log.exception("Closing the engine failed")
        finally:
            self._closed.set()
            self._on_closed()


class _Rising:
    """Passes a number on only when it grew: native code reports every tensor."""

    def __init__(self, on_progress: Callable[[str, int], None]) -> None:
        self._on_progress = on_progress
        self._last: dict[str, int] = {}

    def __call__(self, model: str, percent: int) -> None:
        if percent > self._last.get(model, -1):
            self._last[model] = percent
            self._on_progress(model, percent)


def describe_failure(exc: Exception) -> Failure:
    """Why, in one line. What is not meant for a person goes to the debug log in full."""
    if isinstance(exc, FerrumError):
        return Failure(code=exc.code or INTERNAL_ERROR, message=exc.message)
    log.debug("Start failed", exc_info=exc)
    text = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    return Failure(code=INTERNAL_ERROR, message=text)
