"""Runs a call that is answered at once and whole, without generating: embeddings, rerank."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from flask import request

from ferrum_local.http.disconnect import client_gone
from ferrum_local.http.model_use import KeepAlive, keep_alive_seconds, model_in_use
from ferrum_local.http.openai.call import request_deadline_s, resolve_model
from ferrum_local.http.reading import are_others_unread
from ferrum_local.http.request_context import current_record
from ferrum_local.http.state import state
from ferrum_local.types import EmbeddingResponse, RerankResponse

ResponseT = TypeVar("ResponseT", EmbeddingResponse, RerankResponse)


class ScoringCall(msgspec.Struct, frozen=True, kw_only=True):
    """What one such HTTP call is before it runs. ``created_at``: epoch seconds.

    ``is_crowded``: other requests are open too, or have come.
    """

    id: str
    model_id: str
    created_at: float
    deadline_s: float | None
    keep_alive_s: float | None
    is_crowded: bool
    metadata: dict[str, str]

    @classmethod
    def of_current_request(
        cls, id_prefix: str, model: str | None, kind: str, *, keep_alive: KeepAlive = None
    ) -> ScoringCall:
        """:raises ModelNotFound: nothing of this kind answers to ``model``."""
        app = state()
        keep_alive_s = keep_alive_seconds(keep_alive)
        return cls(
            id=f"{id_prefix}-{secrets.token_hex(16)}",
            model_id=resolve_model(app.engine, model, app.config, kind).id,
            created_at=time.time(),
            deadline_s=request_deadline_s(app.config),
            keep_alive_s=keep_alive_s,
            is_crowded=app.metrics.n_in_flight > 1 or are_others_unread(request.environ),
            metadata={"x_request_id": current_record().request_id},
        )


@contextmanager
def admitted(call: ScoringCall) -> Iterator[Callable[[], bool]]:
    """Within the server's limits, until the block is left; a client that leaves ends the work.

    :returns: the question whether the client has left.
    :raises Unavailable: too many requests are open.
    """
    app = state()
    current_record().model = call.model_id
    engine = app.engine

    def cancel() -> None:
        engine.cancel(call.id)

    with app.gate.admit(), app.departures.watch(request.environ, cancel):
        yield client_gone(request.environ)


def run(call: ScoringCall, ask: Callable[[], ResponseT]) -> ResponseT:
    """Ask the engine, once the model is ready. The call has been admitted.

    :raises FerrumError: what the engine refuses.
    """
    with model_in_use(call.model_id, deadline_s=call.deadline_s, keep_alive_s=call.keep_alive_s):
        response = ask()
    current_record().prompt_tokens = response.prompt_tokens
    return response
