"""What the manager of models keeps of each, and what it shows of that to others."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ferrum_local.types import ModelSpec


class ModelState(str, enum.Enum):
    """Of one model, in ``GET /v1/models``'s words."""

    UNLOADED = "unloaded"
    LOADING = "loading"  # or waiting for its turn, or for memory
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


class ModelBackend(Protocol):
    """Makes and frees the runtimes. Called by one thread at a time."""

    def load(self, spec: ModelSpec, on_progress: Callable[[float], None]) -> None:
        """:param on_progress: gets the loaded part, 0.0 to 1.0.
        :raises Exception: whatever is wrong; nothing is left behind then.
        """
        ...

    def unload(self, spec: ModelSpec) -> None: ...

    def needed_bytes(self, spec: ModelSpec) -> int:
        """Estimated memory.

        :raises FerrumError: the files cannot be used.
        """
        ...

    def free_bytes(self, loaded: Sequence[ModelSpec]) -> int:
        """Memory for one more model, beside those that are ``loaded``."""
        ...


class ModelView(NamedTuple):
    """A model's state for others to see. ``percent``: loaded so far, while loading.

    ``expires_in_s``: until it is unloaded if nobody asks it; None: never, or in use, or not
    loaded.
    """

    state: ModelState
    percent: int | None = None
    error: str | None = None
    expires_in_s: float | None = None


class Entry:
    """What the manager keeps of one model. Guarded by the manager's lock."""

    def __init__(self, spec: ModelSpec, default_keep_alive_s: float) -> None:
        self.spec = spec
        self.state = ModelState.UNLOADED
        self.percent = 0
        self.error: str | None = None
        self.n_leases = 0
        self.default_keep_alive_s = default_keep_alive_s
        self.keep_alive_s = default_keep_alive_s
        self.last_used_s = 0.0
        self.expires_at_s = math.inf
        self.unload_wanted = False

    @property
    def is_idle(self) -> bool:
        return self.state is ModelState.READY and self.n_leases == 0
