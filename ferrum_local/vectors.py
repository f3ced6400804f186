"""What the runtimes that make vectors share: the form of a result, and how a request ends early."""

from __future__ import annotations

import dataclasses
import time
from array import array
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ferrum_local.deadlines import time_left_s
from ferrum_local.errors import Cancelled, DeadlineExceeded, FerrumError, GenerationFailed
from ferrum_local.types import EmbeddingRequest, RerankRequest

AnyRequest: TypeAlias = EmbeddingRequest | RerankRequest
NameOf: TypeAlias = Callable[[int], str]  # what the request calls one of its texts or images


def input_name(i: int) -> str:
    return f"input[{i}]"


def document_names(param: str) -> NameOf:
    return lambda i: f"{param}[{i}]"


def query_and_document_names(param: str) -> NameOf:
    """Of a query with its documents after it."""
    return lambda i: f"{param}[{i - 1}]" if i else "query"


class Embedded(NamedTuple):
    """Vectors in order, tokens that were read, and the indexes of inputs that were cut."""

    vectors: tuple[array[float], ...]
    n_tokens: int
    truncated: tuple[int, ...]


@dataclasses.dataclass
class EmbeddingCounters:
    """Of one model, since the start."""

    tokens: int = 0
    inputs: int = 0
    steps: int = 0
    cancelled: int = 0


class Ends(NamedTuple):
    """How a request that runs is told of, and ended early.

    ``on_start`` is called once the request is accepted, with a function that cancels it;
    ``is_abandoned`` is asked now and then.
    """

    on_start: Callable[[Callable[[], None]], None] = lambda _cancel: None
    is_abandoned: Callable[[], bool] | None = None


class EarlyEnd:
    """Says when a request that runs has to end, and why."""

    def __init__(
        self, request: AnyRequest, ends: Ends, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._request = request
        self._is_abandoned = ends.is_abandoned
        self._clock = clock

    def next_look_s(self, at_most_s: float) -> float:
        """How long to wait before the question is asked again."""
        left_s = time_left_s(self._request, clock=self._clock)
        return at_most_s if left_s is None else min(at_most_s, max(0.0, left_s))

    def reason(self) -> FerrumError | None:
        """None: it may go on."""
        if self._is_abandoned is not None and self._is_abandoned():
            return Cancelled("The client left before the answer was complete.")
        left_s = time_left_s(self._request, clock=self._clock)
        if left_s is not None and left_s < 0:
            return DeadlineExceeded("The request's time limit passed.")
        return None


def normalised(
    rows: npt.NDArray[np.float32], name_of: NameOf = input_name
) -> tuple[array[float], ...]:
    """Each row over its length.

    :raises GenerationFailed: for a vector of zeros, which has no direction.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, np.newaxis]
    if not lengths.all():
        i = int((lengths == 0).argmax())
        raise GenerationFailed(f"{name_of(i)}: the model's vector is all zeros.")
    return tuple(
        array("f", row.tobytes()) for row in (rows / lengths).astype(np.float32, copy=False)
    )
