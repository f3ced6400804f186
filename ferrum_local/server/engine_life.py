"""The engine's part of the server's life: made, loaded in the background, drained, closed."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import cast

from ferrum_local.engine.contracts import Engine
from ferrum_local.errors import FerrumError
from ferrum_local.server.config import ServeConfig

log = logging.getLogger("ferrum_local.server")


def make_engine(factory: str, config: ServeConfig) -> Engine:
    """Call the ``module:callable`` that ``factory`` names. Nothing is loaded yet."""
    module, _, name = factory.partition(":")
    make = getattr(importlib.import_module(module), name)
    speech = {"audio": config.audio} if config.audio else {}
    engine = make(config.models, config.llm, any_model_name=config.http.any_model_name, **speech)
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
        on_failed: Callable[[str], None],
        on_closed: Callable[[], None],
    ) -> None:
        """:param on_ready: gets the ids of the loaded models. :param on_failed: gets the reason."""
        self.engine = engine
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._draining = False
        self._loaded = threading.Event()
        self._closed = threading.Event()
        self.failure: str | None = None

    def start_loading(self) -> None:
        threading.Thread(target=self._load, name="loader", daemon=True).start()

    def start_draining(self, *, grace_s: float) -> None:
        """Refuse new requests; give running ones ``grace_s``, then end them and free the models.

        Returns at once. Calling it again changes nothing.
        """
        with self._lock:
            if self._draining:
                return
            self._draining = True
            loaded = self._loaded.is_set()
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
        failure: str | None = None
        try:
            self.engine.load()
            models = self.engine.status().loaded_models
        except Exception as exc:
            failure = describe_failure(exc)
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


def describe_failure(exc: Exception) -> str:
    """One line for a person. What is not meant for one goes to the debug log in full."""
    if isinstance(exc, FerrumError):
        return exc.message
    log.debug("Start failed", exc_info=exc)
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
