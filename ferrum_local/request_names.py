"""What a request can be cancelled by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Named(Protocol):
    """A request of any kind; see :class:`ferrum_local.types.InferenceRequest`."""

    @property
    def id(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...


def request_names(request: Named) -> frozenset[str]:
    """Its id and, where it has one, that of the HTTP request which it is a part of."""
    return frozenset(filter(None, (request.id, request.metadata.get("x_request_id"))))
