"""A request's need of its model: had loaded, waited for, held until the reply ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from flask import request

from ferrum_local.durations import parse_keep_alive_s
from ferrum_local.engine.loading import wait_for_model
from ferrum_local.http.disconnect import client_gone
from ferrum_local.http.openai.validation import invalid
from ferrum_local.http.state import state

KeepAlive: TypeAlias = str | float | None


def keep_alive_seconds(value: KeepAlive) -> float | None:
    """What ``keep_alive`` asks for; infinite is for ever, None is as the server was started.

    :raises ApiError: 400, it is no length of time.
    """
    if value is None:
        return None
    try:
        return parse_keep_alive_s(value)
    except ValueError:
        raise invalid(
            "keep_alive",
            f"expected seconds, a time like 5m, 0 or -1 (for ever), got {str(value)[:40]!r}",
        ) from None


@contextmanager
def model_in_use(
    model_id: str, *, deadline_s: float | None = None, keep_alive_s: float | None = None
) -> Iterator[None]:
    """Have the model ready within the block. Waits for it as long as the client does.

    :raises FerrumError: it cannot be loaded, the time is up, or the client left.
    """
    is_gone = client_gone(request.environ)
    with state().engine.lease_model(model_id, keep_alive_s=keep_alive_s) as lease:
        wait_for_model(lease, deadline_s=deadline_s, is_abandoned=is_gone)
        yield
