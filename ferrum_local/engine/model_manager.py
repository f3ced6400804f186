"""Which models are loaded: brought in at first use, kept while they are wanted, freed in turn.

One thread loads and frees, one model at a time. Whoever uses a model holds a lease on it;
nothing is freed under one.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from ferrum_local.engine.model_states import Entry, ModelBackend, ModelState, ModelView
from ferrum_local.errors import FerrumError, ModelUnusable, Unavailable
from ferrum_local.types import ModelSpec

logger = logging.getLogger(__name__)

UNLOAD_WAIT_S = 3.0  # for what is mostly done in milliseconds
_NO_THREAD_RETRY_S = 5.0
_ROOM_LOOK_S = 1.0  # how often a load that waits for memory looks whether there is some
# After so long in which all loaded models were in use, a load tries without more room: whoever
# holds them may itself wait for this one.
_ROOM_PATIENCE_S = 5.0


class Lease:
    """Somebody's need of one model. Use it as a context manager, or call ``release``."""

    def __init__(self, manager: ModelManager, entry: Entry) -> None:
        self._manager = manager
        self._entry = entry
        self._held = True

    def wait(self, timeout_s: float) -> bool:
        """Whether the model is ready, after at most ``timeout_s`` seconds.

        :raises ModelUnusable: it could not be loaded. Unavailable: the server stops.
        """
        return self._manager._wait(self._entry, timeout_s)

    def release(self) -> None:
        """Let the model go. Safe to call twice and from any thread."""
        with self._manager._changed:
            if self._held:
                self._held = False
                self._manager._release(self._entry)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.release()


class ModelManager:
    """The loaded models of one engine, and those on their way.

    :param clock: seconds that never go back.
    """

    def __init__(
        self, backend: ModelBackend, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._changed = threading.Condition()
        self._work = threading.Lock()  # one load or unload at a time
        self._entries: dict[str, Entry] = {}
        self._queue: deque[Entry] = deque()  # to be loaded
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- use -------------------------------------------------------------------------------

    def load_now(
        self,
        spec: ModelSpec,
        *,
        keep_alive_s: float,
        on_progress: Callable[[float], None] = lambda _fraction: None,
    ) -> None:
        """Load on the calling thread.

        :raises Exception: as the backend's ``load``.
        """
        with self._changed:
            entry = self._entries.setdefault(spec.id, Entry(spec, keep_alive_s))
            entry.state = ModelState.LOADING
        with self._work:
            self._load(entry, on_progress, raises=True)

    def lease(
        self, spec: ModelSpec, *, default_keep_alive_s: float, keep_alive_s: float | None = None
    ) -> Lease:
        """Need a model; it is loaded if it is not. ``Lease.wait`` then tells when it is there.

        :param keep_alive_s: how long it stays after this use, instead of the default.
        :raises Unavailable: the server stops, or can start no thread.
        """
        with self._changed:
            self._refuse_when_closed()
            entry = self._entries.setdefault(spec.id, Entry(spec, default_keep_alive_s))
            if entry.state in (ModelState.UNLOADED, ModelState.FAILED):
                self._enqueue(entry, spec)
            if entry.n_leases == 0:
                entry.keep_alive_s = entry.default_keep_alive_s
            if keep_alive_s is not None:
                entry.keep_alive_s = keep_alive_s
            entry.n_leases += 1
            entry.unload_wanted = False
            entry.last_used_s = self._clock()
            return Lease(self, entry)

    def unload(self, model_id: str, *, timeout_s: float = UNLOAD_WAIT_S) -> ModelState:
        """Free a model once nobody uses it; waits only if nobody does now.

        :param timeout_s: another model's load, which comes first, may take minutes.
        :returns: its state then: ``unloading`` means that it will be freed when it is let go, or
            when its turn comes.
        :raises Unavailable: the server can start no thread.
        """
        with self._changed:
            entry = self._entries.get(model_id)
            if entry is None:
                return ModelState.UNLOADED
            if entry.state in (ModelState.LOADING, ModelState.READY):
                if entry.is_idle:
                    self._start_thread()
                entry.unload_wanted = True
                if not entry.is_idle:
                    return ModelState.UNLOADING
            leaving = (ModelState.READY, ModelState.UNLOADING)
            has_settled = self._changed.wait_for(
                lambda: entry.state not in leaving or entry.n_leases > 0 or self._closed, timeout_s
            )
            return entry.state if has_settled else ModelState.UNLOADING

    def view(self, model_id: str) -> ModelView:
        with self._changed:
            entry = self._entries.get(model_id)
            if entry is None:
                return ModelView(ModelState.UNLOADED)
            state = entry.state
            if state is ModelState.READY and entry.unload_wanted:
                state = ModelState.UNLOADING
            expires_in_s = None
            if entry.is_idle and entry.expires_at_s != math.inf:
                expires_in_s = max(0.0, entry.expires_at_s - self._clock())
            return ModelView(
                state=state,
                percent=entry.percent if state is ModelState.LOADING else None,
                error=entry.error,
                expires_in_s=expires_in_s,
            )

    def is_ready(self, model_id: str) -> bool:
        with self._changed:
            entry = self._entries.get(model_id)
            return entry is not None and entry.state is ModelState.READY

    def is_loaded(self, model_id: str) -> bool:
        """Whether it is in memory, or on its way."""
        with self._changed:
            entry = self._entries.get(model_id)
            gone = (ModelState.UNLOADED, ModelState.FAILED)
            return entry is not None and entry.state not in gone

    def close(self) -> None:
        """Load and free no more; whoever waits is told. What is loaded stays the backend's."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    # -- leases ----------------------------------------------------------------------------

    def _wait(self, entry: Entry, timeout_s: float) -> bool:
        settled = (ModelState.READY, ModelState.FAILED)
        with self._changed:
            self._changed.wait_for(lambda: entry.state in settled or self._closed, timeout_s)
            if entry.state is ModelState.READY:
                return True
            self._refuse_when_closed()
            if entry.state is ModelState.FAILED:
                raise ModelUnusable(entry.error or "It cannot be loaded.")
            return False

    def _release(self, entry: Entry) -> None:
        entry.n_leases -= 1
        entry.last_used_s = self._clock()
        if entry.n_leases == 0:
            entry.expires_at_s = entry.last_used_s + entry.keep_alive_s
            if entry.expires_at_s != math.inf or entry.unload_wanted:
                self._try_to_start_thread()
        self._changed.notify_all()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.", retry_after_s=5, code="draining")

    # -- the thread that loads and frees -----------------------------------------------------

    def _enqueue(self, entry: Entry, spec: ModelSpec) -> None:
        """:raises Unavailable: no thread can be started; nothing has changed then."""
        self._start_thread()
        entry.spec = spec
        entry.state = ModelState.LOADING
        entry.percent = 0
        entry.error = None
        self._queue.append(entry)

    def _start_thread(self) -> None:
        """It lives as long as there is something to load, or a model that will expire.

        It looks at nothing before the caller lets the lock go.

        :raises Unavailable: no thread can be started.
        """
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name="models", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise Unavailable(
                    f"The server can start no thread for its models: {error}",
                    retry_after_s=_NO_THREAD_RETRY_S,
                ) from error
            self._thread = thread
        self._changed.notify_all()

    def _try_to_start_thread(self) -> None:
        """Where nobody waits for its work: the next use of a model tries again."""
        try:
            self._start_thread()
        except Unavailable as error:
            logger.warning("%s", error.message)

    def _run(self) -> None:
        while True:
            with self._changed:
                work = self._next_work()
                while work is None:
                    wait_s = self._next_expiry_in_s()
                    if self._closed or wait_s is None:
                        self._thread = None
                        return
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                    work = self._next_work()
            with self._work:
                work()

    def _next_work(self) -> Callable[[], None] | None:
        if self._closed:
            return None
        while self._queue:
            entry = self._queue.popleft()
            if entry.n_leases:
                return functools.partial(self._load, entry)
            entry.state = ModelState.UNLOADED  # whoever wanted it left
            self._changed.notify_all()
        now_s = self._clock()
        for entry in self._entries.values():
            if entry.is_idle and (entry.unload_wanted or entry.expires_at_s <= now_s):
                entry.state = ModelState.UNLOADING
                return functools.partial(self._unload, entry)
        return None

    def _next_expiry_in_s(self) -> float | None:
        """None: no loaded model will expire. One in use is looked at again when it is let go."""
        ends = [e.expires_at_s for e in self._entries.values() if e.is_idle]
        soonest_s = min(ends, default=math.inf)
        return None if soonest_s == math.inf else max(0.0, soonest_s - self._clock())

    def _load(
        self,
        entry: Entry,
        on_progress: Callable[[float], None] = lambda _fraction: None,
        *,
        raises: bool = False,
    ) -> None:
        def note_progress(fraction: float) -> None:
            entry.percent = min(99, int(100 * fraction))
            on_progress(fraction)

        is_wanted = True
        fault: str | None = f"{entry.spec.path}: the load was broken off"  # if nothing else is said
        try:
            if not raises:
                is_wanted = self._make_room(entry)
            if is_wanted:
                self._backend.load(entry.spec, note_progress)
            fault = None
        except Exception as exc:
            fault = exc.message if isinstance(exc, FerrumError) else f"{entry.spec.path}: {exc}"
            if raises:
                raise
            logger.error("%s", fault, exc_info=None if isinstance(exc, FerrumError) else exc)
        finally:
            with self._changed:
                self._settle(entry, is_wanted=is_wanted, fault=fault)

    def _settle(self, entry: Entry, *, is_wanted: bool, fault: str | None) -> None:
        """What became of a load."""
        entry.error = fault
        entry.expires_at_s = self._clock() + entry.keep_alive_s
        if fault is not None:
            entry.state = ModelState.FAILED
        elif is_wanted:
            entry.state = ModelState.READY
        else:
            entry.state = ModelState.UNLOADED
            if entry.n_leases and not self._closed:  # wanted again meanwhile
                self._enqueue(entry, entry.spec)
        if entry.is_idle and (entry.unload_wanted or entry.expires_at_s != math.inf):
            self._try_to_start_thread()
        self._changed.notify_all()

    def _unload(self, entry: Entry) -> None:
        """:param entry: already in the state ``unloading``."""
        try:
            self._backend.unload(entry.spec)
            logger.info("%s: unloaded", entry.spec.id)
        except Exception:  # the others go on; what could be freed is freed
            logger.exception("%s: unloading failed", entry.spec.id)
        with self._changed:
            entry.unload_wanted = False
            entry.state = ModelState.UNLOADED
            if entry.n_leases and not self._closed:  # wanted again meanwhile
                self._enqueue(entry, entry.spec)
            self._changed.notify_all()

    def _make_room(self, entry: Entry) -> bool:
        """Free models, the longest unused first, until ``entry`` should fit.

        Waits for those in use, but not for ever. Then, or if all others are gone, the load may
        try its luck: its own check says best what is missing.

        :returns: False when nobody wants the model any more.
        """
        needed = self._backend.needed_bytes(entry.spec)
        all_in_use_since_s: float | None = None
        while True:
            with self._changed:
                if not entry.n_leases or self._closed:
                    return False
                loaded = [e for e in self._entries.values() if e.state is ModelState.READY]
            if not loaded or needed <= self._backend.free_bytes([e.spec for e in loaded]):
                return True
            with self._changed:
                idle = [e for e in loaded if e.is_idle]
                if not idle:
                    now_s = self._clock()
                    if all_in_use_since_s is None:
                        all_in_use_since_s = now_s
                    elif now_s - all_in_use_since_s >= _ROOM_PATIENCE_S:
                        return True
                    self._changed.wait(_ROOM_LOOK_S)
                    continue
                all_in_use_since_s = None
                # Those that are to stay for ever go last.
                victim = min(idle, key=lambda e: (e.keep_alive_s == math.inf, e.last_used_s))
                victim.state = ModelState.UNLOADING
            logger.info("%s: unloading it for %s", victim.spec.id, entry.spec.id)
            self._unload(victim)
