"""What the doctor has to say of one thing."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``what`` was seen of ``topic``. ``remedy``: what to do about it, in one line."""

    topic: str
    status: Literal["ok", "warning", "problem"]
    what: str
    remedy: str | None = None


def ok(topic: str, what: str) -> Finding:
    return Finding(topic=topic, status="ok", what=what)


def warning(topic: str, what: str, remedy: str) -> Finding:
    return Finding(topic=topic, status="warning", what=what, remedy=remedy)


def problem(topic: str, what: str, remedy: str) -> Finding:
    return Finding(topic=topic, status="problem", what=what, remedy=remedy)
