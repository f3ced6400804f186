"""A context without a model, for injecting faults into the decode thread.

It keeps slot positions as llama.cpp does and refuses what llama.cpp would refuse.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import numpy as np
import numpy.typing as npt

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.context import DecodeError
from ferrum_local.llm.prompt_cache import PromptCache
from ferrum_local.llm.runner import Runner
from ferrum_local.llm.scheduler import Scheduler, StepTimes
from ferrum_local.llm.sequence import Event, Sequence
from ferrum_local.llm.slot_cache import SlotCache
from ferrum_local.types import Priority

N_VOCAB = 32
N_BATCH = 64


class ScriptedModel:
    n_vocab = N_VOCAB

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token])


class ScriptedSampler:
    """Counts up from the batch index's slot: any text, the same each run."""

    is_argmax = False

    def __init__(self) -> None:
        self.closed = False
        self._next = 0

    def add_biases(self, _logits: object) -> None:
        pass

    def sample(self, _context: int, _batch_index: int) -> int:
        assert not self.closed
        self._next += 1
        return self._next % N_VOCAB

    def close(self) -> None:
        self.closed = True


class ScriptedContext:
    """:param faults: step number -> status of ``DecodeError``, or a token whose presence fails."""

    handle = 0

    def __init__(self, n_slots: int, *, can_cut: bool = True) -> None:
        self.model = ScriptedModel()
        self.options = types.SimpleNamespace(n_batch=N_BATCH)
        self.slots: list[list[int]] = [[] for _ in range(n_slots)]
        self.can_cut = can_cut
        self.statuses: dict[int, int] = {}
        self.poison: int | None = None  # a token that makes any batch fail
        self.nan_slots: set[int] = set()
        self.n_steps = 0
        self.n_rebuilt = 0
        self.closed = False
        self.is_alive = True
        self.rebuild_fails = False
        self.step_begins = threading.Event()
        self.step_may_end = threading.Event()
        self.step_may_end.set()
        self.aborted = False
        self.steps: list[list[int]] = []  # the slot of each token, step by step
        self._batch: list[tuple[int, int, int]] = []

    @property
    def n_batched(self) -> int:
        return len(self._batch)

    def clear_batch(self) -> None:
        self._batch = []

    def add_tokens(
        self, slot: int, tokens: list[int], first_position: int, *, output: str = "none"
    ) -> int:
        self._batch += [(slot, first_position + i, t) for i, t in enumerate(tokens)]
        assert len(self._batch) <= N_BATCH, "the batch is full"
        return len(self._batch) - 1

    def decode(self) -> None:
        self.n_steps += 1
        self.steps.append([slot for slot, _, _ in self._batch])
        self.aborted = False
        self.step_begins.set()
        assert self.step_may_end.wait(10)
        status = self.statuses.get(self.n_steps, 0)
        if self.aborted:
            status = 2
        if any(token == self.poison for _, _, token in self._batch):
            status = -3
        if status:
            raise DecodeError(status)
        for slot, position, token in self._batch:
            assert position == len(self.slots[slot]), "positions of a slot must be gapless"
            self.slots[slot].append(token)

    def abort(self) -> None:
        self.aborted = True

    def logits(self, batch_index: int) -> npt.NDArray[np.float32]:
        row = np.zeros(N_VOCAB, dtype=np.float32)
        if self._batch[batch_index][0] in self.nan_slots:
            row[3] = np.nan
        return row

    def truncate_slot(self, slot: int, n_tokens: int) -> bool:
        if n_tokens < len(self.slots[slot]) and not self.can_cut and n_tokens:
            return False
        del self.slots[slot][n_tokens:]
        return True

    def clear_slot(self, slot: int) -> None:
        self.slots[slot] = []

    def copy_slot(self, source: int, target: int) -> None:
        self.slots[target] = list(self.slots[source])

    def slot_state_bytes(self, slot: int) -> int:
        return len(self.slots[slot])

    def save_slot(self, slot: int) -> bytes:
        return bytes(self.slots[slot])

    def load_slot(self, slot: int, state: bytes) -> bool:
        self.slots[slot] = list(state)
        return True

    def slot_positions(self, slot: int) -> tuple[int, int]:
        return (0, len(self.slots[slot]) - 1) if self.slots[slot] else (-1, -1)

    def rebuild(self) -> None:
        self.n_rebuilt += 1
        self.is_alive = not self.rebuild_fails
        if self.rebuild_fails:
            raise ModelLoadError("no memory for a context")
        self.slots = [[] for _ in self.slots]

    def close(self) -> None:
        self.closed = True


def make_runner(
    context: ScriptedContext, *, max_queue: int = 16, prompt_cache: PromptCache | None = None
) -> Runner:
    runner = Runner(
        context,  # type: ignore[arg-type]
        SlotCache(len(context.slots), can_cut=context.can_cut),
        Scheduler(n_batch=N_BATCH, n_score_tokens=16, times=StepTimes()),
        max_queue=max_queue,
        prompt_cache=prompt_cache,
    )
    runner.start()
    return runner


def make_sequence(
    events: list[Event], prompt: list[int], *, request_id: str = "r", **changes: Any
) -> Sequence:
    fields: dict[str, Any] = {
        "request_id": request_id, "index": 0, "tokens": list(prompt), "n_prompt": len(prompt),
        "max_tokens": 5, "min_tokens": 0, "eog_tokens": frozenset(), "sampler": ScriptedSampler(),
        "deliver": events.append, "priority": Priority.INTERACTIVE,
    }  # fmt: skip
    return Sequence(**{**fields, **changes})
