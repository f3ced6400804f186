"""A load may begin before there is anybody to tell of it."""

from __future__ import annotations

import threading

from ferrum_local.errors import ModelLoadError
from ferrum_local.server.engine_life import EngineLife
from tests.fakes import ScriptedEngine, wait_until

WAIT_S = 10.0


class Engine(ScriptedEngine):
    """Tells when it was loaded, and can fail at that."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(())
        self._error = error
        self.n_loads = 0
        self.n_closes = 0
        self.was_loaded = threading.Event()

    def close(self, *, grace_s: float = 0.0) -> None:
        self.n_closes += 1
        super().close(grace_s=grace_s)

    def load(self) -> None:
        self.n_loads += 1
        self.was_loaded.set()
        if self._error is not None:
            raise self._error
        super().load()


def begun_early(engine: Engine) -> tuple[EngineLife, list[str], threading.Event]:
    told: list[str] = []
    has_told = threading.Event()

    def tell(what: str) -> None:
        told.append(what)
        has_told.set()

    life = EngineLife(
        engine,
        on_ready=lambda _models: tell("ready"),
        on_failed=lambda failure: tell(failure.message),
        on_closed=lambda: None,
    )
    life.load_early()
    assert engine.was_loaded.wait(WAIT_S)
    return life, told, has_told


def test_an_early_load_is_told_once_loading_is_asked_for() -> None:
    engine = Engine()
    life, told, has_told = begun_early(engine)
    assert not life.wait_loaded(0.1) and told == []
    life.start_loading()
    assert has_told.wait(WAIT_S) and told == ["ready"]
    assert engine.n_loads == 1


def test_so_is_its_failure() -> None:
    life, told, has_told = begun_early(Engine(ModelLoadError("broken.gguf: no model")))
    assert not has_told.wait(0.1)
    life.start_loading()
    assert has_told.wait(WAIT_S) and told == ["broken.gguf: no model"]
    assert life.failure is not None


def test_a_server_that_stops_first_is_told_nothing_and_its_engine_is_closed() -> None:
    engine = Engine()
    life, told, _ = begun_early(engine)
    life.start_draining(grace_s=0)
    assert life.wait_loaded(WAIT_S)
    wait_until(lambda: engine.n_closes == 1)
    assert told == []
