"""When models are loaded and freed, with a scripted backend in the place of native libraries."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from ferrum_local.engine.loading import wait_for_model
from ferrum_local.engine.model_manager import Lease, ModelManager
from ferrum_local.engine.model_states import ModelState
from ferrum_local.errors import Cancelled, DeadlineExceeded, ModelUnusable, Unavailable
from ferrum_local.types import ModelSpec
from tests.fakes import wait_until

WAIT_S = 10.0


class Backend:
    """Loads by noting it. ``room``: models that fit beside each other."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.loaded: list[str] = []
        self.log: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.faults: dict[str, BaseException] = {}
        self.loading = threading.Event()
        self.unloading = threading.Event()

    def load(self, spec: ModelSpec, on_progress: Callable[[float], None]) -> None:
        on_progress(0.5)
        self.loading.set()
        if spec.id in self.gates:
            assert self.gates[spec.id].wait(WAIT_S)
        if spec.id in self.faults:
            raise self.faults[spec.id]
        self.log.append(f"+{spec.id}")
        self.loaded.append(spec.id)

    def unload(self, spec: ModelSpec) -> None:
        self.unloading.set()
        if f"-{spec.id}" in self.gates:
            assert self.gates[f"-{spec.id}"].wait(WAIT_S)
        self.log.append(f"-{spec.id}")
        self.loaded.remove(spec.id)

    def needed_bytes(self, spec: ModelSpec) -> int:
        return 1

    def free_bytes(self, loaded: Sequence[ModelSpec]) -> int:
        return self.room - len(loaded)


class Desk:
    """A manager whose clock the test moves."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.now_s = 1000.0
        self.manager = ModelManager(backend, clock=lambda: self.now_s)

    def lease(self, name: str, keep_alive_s: float | None = None) -> Lease:
        spec = ModelSpec(id=name, path=f"/m/{name}.gguf")
        return self.manager.lease(spec, default_keep_alive_s=300.0, keep_alive_s=keep_alive_s)

    def use(self, name: str, keep_alive_s: float | None = None) -> None:
        """One request from its beginning to its end."""
        self.now_s += 1
        with self.lease(name, keep_alive_s) as lease:
            assert lease.wait(WAIT_S)

    def state(self, name: str) -> ModelState:
        return self.manager.view(name).state

    def let_pass(self, seconds: float) -> None:
        """Move the clock, and have the manager look at it."""
        self.now_s += seconds
        with self.manager._changed:
            self.manager._changed.notify_all()


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk(Backend())
    yield made
    made.manager.close()


def test_a_model_is_loaded_once_for_all_who_want_it_first(desk: Desk) -> None:
    gate = desk.backend.gates["a"] = threading.Event()
    leases = [desk.lease("a") for _ in range(8)]
    assert not leases[0].wait(0.0)
    assert desk.backend.loading.wait(WAIT_S)
    assert desk.manager.view("a")[:2] == (ModelState.LOADING, 50)
    gate.set()
    assert all(lease.wait(WAIT_S) for lease in leases)
    assert desk.backend.log == ["+a"]


def test_a_model_stays_as_long_as_it_was_asked_to(desk: Desk) -> None:
    desk.use("default")
    desk.use("short", keep_alive_s=60.0)
    desk.use("forever", keep_alive_s=math.inf)
    assert desk.manager.view("short").expires_in_s == pytest.approx(59.0, abs=1.1)
    assert desk.manager.view("forever").expires_in_s is None
    desk.let_pass(61)
    wait_until(lambda: desk.state("short") is ModelState.UNLOADED)
    assert desk.state("default") is ModelState.READY
    desk.let_pass(300)
    wait_until(lambda: desk.state("default") is ModelState.UNLOADED)
    assert desk.backend.loaded == ["forever"]


def test_a_keep_alive_of_nothing_frees_at_once_and_only_this_time(desk: Desk) -> None:
    desk.use("a", keep_alive_s=0.0)
    wait_until(lambda: desk.state("a") is ModelState.UNLOADED)
    desk.use("a")
    assert desk.manager.view("a").expires_in_s == pytest.approx(300.0)


def test_a_model_in_use_does_not_expire(desk: Desk) -> None:
    with desk.lease("a", keep_alive_s=0.0) as lease:
        assert lease.wait(WAIT_S)
        desk.let_pass(10_000)
        desk.use("b")  # the thread has looked at everything when it is done with this
        assert desk.state("a") is ModelState.READY
    wait_until(lambda: desk.state("a") is ModelState.UNLOADED)


def test_what_was_not_used_for_longest_makes_room(desk: Desk) -> None:
    desk.backend.room = 2
    desk.use("a")
    desk.use("b")
    desk.use("a")
    desk.use("c")
    assert desk.backend.log == ["+a", "+b", "-b", "+c"]


def test_models_that_are_to_stay_go_last(desk: Desk) -> None:
    desk.backend.room = 2
    desk.use("named", keep_alive_s=math.inf)
    desk.use("b")
    desk.use("c")
    assert desk.backend.loaded == ["named", "c"]


def test_a_load_waits_for_a_model_in_use_to_be_let_go(desk: Desk) -> None:
    desk.backend.room = 1
    running = desk.lease("a")
    assert running.wait(WAIT_S)
    wanting = desk.lease("b")
    assert not wanting.wait(0.05)
    assert desk.backend.loaded == ["a"]
    running.release()
    assert wanting.wait(WAIT_S)
    assert desk.backend.log == ["+a", "-a", "+b"]


def test_two_who_hold_what_the_other_wants_do_not_wait_for_ever(desk: Desk) -> None:
    desk.backend.room = 1
    holding = desk.lease("a")
    assert holding.wait(WAIT_S)
    desk.backend.faults["b"] = MemoryError("it needs 1 byte more")
    wanting = desk.lease("b")
    assert not wanting.wait(0.05)

    def is_told() -> bool:
        desk.let_pass(1)
        return desk.state("b") is ModelState.FAILED

    wait_until(is_told)
    with pytest.raises(ModelUnusable, match="1 byte more"):
        wanting.wait(WAIT_S)
    assert desk.backend.loaded == ["a"]


def test_alone_it_is_loaded_even_if_it_seems_too_large(desk: Desk) -> None:
    """The load's own check says best what is missing."""
    desk.backend.room = 0
    desk.use("a")
    assert desk.backend.loaded == ["a"]


def test_a_load_that_nobody_waits_for_any_more_is_dropped(desk: Desk) -> None:
    gate = desk.backend.gates["a"] = threading.Event()
    first = desk.lease("a")
    assert desk.backend.loading.wait(WAIT_S)
    desk.lease("b").release()
    gate.set()
    assert first.wait(WAIT_S)
    wait_until(lambda: desk.state("b") is ModelState.UNLOADED)
    assert desk.backend.log == ["+a"]


def test_a_failed_load_is_told_to_all_who_wait_and_tried_again_for_the_next(desk: Desk) -> None:
    gate = desk.backend.gates["a"] = threading.Event()
    desk.backend.faults["a"] = RuntimeError("no good")
    leases = [desk.lease("a") for _ in range(3)]
    gate.set()
    for lease in leases:
        with pytest.raises(ModelUnusable, match="/m/a.gguf: no good"):
            lease.wait(WAIT_S)
        lease.release()
    assert desk.manager.view("a").error == "/m/a.gguf: no good"
    desk.use("b")
    del desk.backend.faults["a"]
    desk.use("a")
    assert desk.manager.view("a").error is None


def test_unloading_waits_for_nobody_and_frees_under_nobody(desk: Desk) -> None:
    lease = desk.lease("a")
    assert lease.wait(WAIT_S)
    assert desk.manager.unload("a") is ModelState.UNLOADING
    assert desk.state("a") is ModelState.UNLOADING
    assert desk.backend.loaded == ["a"]
    lease.release()
    wait_until(lambda: desk.state("a") is ModelState.UNLOADED)
    desk.use("a")
    assert desk.manager.unload("a") is ModelState.UNLOADED
    assert desk.manager.unload("never heard of") is ModelState.UNLOADED


def test_unloading_does_not_wait_for_another_models_long_load(desk: Desk) -> None:
    desk.use("a")
    gate = desk.backend.gates["b"] = threading.Event()
    desk.backend.loading.clear()
    with desk.lease("b") as lease:
        assert desk.backend.loading.wait(WAIT_S)
        assert desk.manager.unload("a", timeout_s=0.05) is ModelState.UNLOADING
        assert desk.state("a") is ModelState.UNLOADING
        gate.set()
        assert lease.wait(WAIT_S)
    wait_until(lambda: desk.state("a") is ModelState.UNLOADED)


def test_who_asks_for_a_model_that_is_to_go_keeps_it(desk: Desk) -> None:
    lease = desk.lease("a")
    assert lease.wait(WAIT_S)
    desk.manager.unload("a")
    with desk.lease("a"):
        lease.release()
    desk.use("b")
    assert "a" in desk.backend.loaded


def test_who_asks_for_a_model_while_it_goes_gets_it_again(desk: Desk) -> None:
    gate = desk.backend.gates["-a"] = threading.Event()
    desk.use("a", keep_alive_s=0.0)
    assert desk.backend.unloading.wait(WAIT_S)
    with desk.lease("a") as lease:
        assert not lease.wait(0.0)
        gate.set()
        assert lease.wait(WAIT_S)
        assert desk.backend.log == ["+a", "-a", "+a"]


def test_waiting_ends_with_the_deadline_or_the_client(desk: Desk) -> None:
    gate = desk.backend.gates["a"] = threading.Event()
    with desk.lease("a") as lease:
        with pytest.raises(DeadlineExceeded):
            wait_for_model(lease, deadline_s=0.01)
        with pytest.raises(Cancelled):
            wait_for_model(lease, is_abandoned=lambda: True)
    gate.set()


def test_closing_tells_those_who_wait(desk: Desk) -> None:
    gate = desk.backend.gates["a"] = threading.Event()
    lease = desk.lease("a")
    desk.manager.close()
    with pytest.raises(Unavailable):
        lease.wait(WAIT_S)
    with pytest.raises(Unavailable):
        desk.lease("b")
    gate.set()


def test_a_model_of_the_start_is_loaded_on_the_spot(desk: Desk) -> None:
    seen: list[float] = []
    spec = ModelSpec(id="a", path="/m/a.gguf")
    desk.manager.load_now(spec, keep_alive_s=math.inf, on_progress=seen.append)
    assert (desk.state("a"), seen) == (ModelState.READY, [0.5])
    desk.backend.faults["b"] = RuntimeError("no good")
    with pytest.raises(RuntimeError):
        desk.manager.load_now(ModelSpec(id="b", path="/m/b.gguf"), keep_alive_s=math.inf)
    assert desk.state("b") is ModelState.FAILED


def test_a_load_that_is_broken_off_leaves_no_model_that_seems_ready(desk: Desk) -> None:
    """As by Ctrl-C in a program that loads its engine."""
    desk.backend.faults["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        desk.manager.load_now(ModelSpec(id="a", path="/m/a.gguf"), keep_alive_s=math.inf)
    view = desk.manager.view("a")
    assert (view.state, view.error) == (ModelState.FAILED, "/m/a.gguf: the load was broken off")
    del desk.backend.faults["a"]
    desk.use("a")
    assert desk.backend.log == ["+a"]


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No thread can be started until this is undone."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        yield patch


def test_a_load_for_which_no_thread_can_be_started_is_refused_and_tried_again(
    desk: Desk, without_threads: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable, match="thread"):
            desk.lease("a")
        assert desk.state("a") is ModelState.UNLOADED
    without_threads.undo()
    desk.use("a", keep_alive_s=0.0)
    wait_until(lambda: desk.state("a") is ModelState.UNLOADED)  # nobody holds it


def test_without_a_thread_a_model_is_let_go_and_freed_later(
    desk: Desk, without_threads: pytest.MonkeyPatch
) -> None:
    desk.manager.load_now(ModelSpec(id="a", path="/m/a.gguf"), keep_alive_s=300.0)
    with desk.lease("a", keep_alive_s=0.0) as lease:
        assert lease.wait(WAIT_S)
    with pytest.raises(Unavailable, match="thread"):
        desk.manager.unload("a")
    assert desk.state("a") is ModelState.READY
    without_threads.undo()
    desk.use("b")
    wait_until(lambda: desk.state("a") is ModelState.UNLOADED)


def test_many_threads_use_few_places(desk: Desk) -> None:
    """Whoever waited finds the model loaded, and it stays until they are done."""
    desk.backend.room = 2
    wrong: list[str] = []

    def work(seed: int) -> None:
        for i in range(20):
            name = "abcde"[(seed + i * (seed + 1)) % 5]
            with desk.lease(name, keep_alive_s=0.0 if i % 3 else None) as lease:
                if not lease.wait(WAIT_S) or name not in desk.backend.loaded:
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(set(desk.backend.loaded)) == len(desk.backend.loaded) <= 2
