"""Requests that wait to be embedded, and which of their texts share the next step.

Pure Python: no clock of its own, no device, no locks.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ferrum_local.errors import FerrumError
from ferrum_local.vectors import NameOf, input_name

Row = npt.NDArray[np.float32]


class EmbeddingJob:
    """The texts of one request as token ids, and what has become of them.

    ``done`` is set once: all ``rows`` are there, or ``error`` says why not. ``is_crowded``:
    others want the cores too.
    """

    def __init__(
        self,
        request_id: str,
        inputs: Sequence[list[int]],
        name_of: NameOf = input_name,
        *,
        is_crowded: bool = False,
    ) -> None:
        self.request_id = request_id
        self.inputs = inputs
        self.name_of = name_of
        self.is_crowded = is_crowded
        self.rows: list[Row | None] = [None] * len(inputs)
        self.done = threading.Event()
        self.error: FerrumError | None = None
        self.n_begun = 0
        self.n_tokens_left = sum(map(len, inputs))  # of inputs that no step has had
        self._n_left = len(inputs)

    def put(self, index: int, row: Row) -> None:
        """Take the vector of one input."""
        self.rows[index] = row
        self._n_left -= 1
        if not self._n_left:
            self.done.set()

    def fail(self, error: FerrumError) -> None:
        """End with ``error``, unless it has ended already."""
        if not self.done.is_set():
            self.error = error
            self.done.set()


class Item(NamedTuple):
    """One input of a job in a step."""

    job: EmbeddingJob
    place: int  # among the job's inputs

    @property
    def tokens(self) -> list[int]:
        return self.job.inputs[self.place]

    @property
    def name(self) -> str:
        """What the request calls it."""
        return self.job.name_of(self.place)


class EmbeddingQueue:
    """Jobs with inputs that no step has had yet."""

    def __init__(self) -> None:
        self._jobs: collections.deque[EmbeddingJob] = collections.deque()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def n_waiting(self) -> int:
        """Jobs of which nothing has been in a step."""
        return sum(job.n_begun == 0 for job in self._jobs)

    @property
    def n_tokens(self) -> int:
        """Of all inputs that no step has had."""
        return sum(job.n_tokens_left for job in self._jobs)

    @property
    def is_crowded(self) -> bool:
        """Whether others than these jobs want the cores."""
        return any(job.is_crowded for job in self._jobs)

    @property
    def n_first_tokens(self) -> int:
        """Of the input that is first in the next step; 0: there is none."""
        return len(self._jobs[0].inputs[self._jobs[0].n_begun]) if self._jobs else 0

    def add(self, job: EmbeddingJob) -> None:
        self._jobs.append(job)

    def discard(self, job: EmbeddingJob) -> None:
        if job in self._jobs:
            self._jobs.remove(job)

    def take_all(self) -> list[EmbeddingJob]:
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def take_step(self, *, n_tokens: int, n_sequences: int) -> list[Item]:
        """What goes into the next step; empty when nothing waits.

        Jobs take turns, one input each, so that a short request does not wait for all of a
        long one. The first input goes in whatever its length; further ones as long as the
        step has at most ``n_tokens`` and ``n_sequences``. Who was first is last the next time.
        """
        items: list[Item] = []
        open_jobs = list(self._jobs)
        n_left = n_tokens
        while open_jobs and len(items) < n_sequences:
            still_open: list[EmbeddingJob] = []
            for job in open_jobs:
                if len(items) == n_sequences:
                    break
                item = Item(job, job.n_begun)
                if items and len(item.tokens) > n_left:
                    continue
                items.append(item)
                n_left -= len(item.tokens)
                job.n_begun += 1
                job.n_tokens_left -= len(item.tokens)
                if job.n_begun < len(job.inputs):
                    still_open.append(job)
            open_jobs = still_open
        self._jobs.rotate(-1)
        self._jobs = collections.deque(j for j in self._jobs if j.n_begun < len(j.inputs))
        return items
