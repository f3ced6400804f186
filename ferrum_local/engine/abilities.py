"""Which models can do what a route asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ferrum_local.errors import InvalidRequest


class Able(Protocol):
    """What these functions need of a ``ModelInfo``."""

    @property
    def id(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def capabilities(self) -> tuple[str, ...]: ...


A = TypeVar("A", bound=Able)

# The kind of a route, and what a model must be able to do for it; the best comes first. Kinds
# that are not here are done by the models of that kind.
_CAPABILITIES = {
    # The last of each says itself, better than a refused name would, why it cannot.
    "embedding": ("embeddings", "rerank"),
    "image-embedding": ("image-embeddings", "embeddings"),
    "rerank": ("rerank", "embeddings"),
}


def able_models(infos: Sequence[A], kind: str) -> list[A]:
    """Models for a route's kind, the first being its default; chat models come last."""
    if kind not in _CAPABILITIES:
        return [info for info in infos if info.kind == kind]
    ordered = sorted(infos, key=lambda info: info.kind == "chat")
    return [i for wanted in _CAPABILITIES[kind] for i in ordered if wanted in i.capabilities]


def refuse_chat_model(infos: Sequence[Able], name: str | None, kind: str) -> None:
    """Say how a chat model can be made to embed, to who asks one that may not.

    :raises InvalidRequest: ``name`` is a chat model without that ability.
    """
    if kind not in _CAPABILITIES:
        return
    for info in infos:
        is_meant = name in (info.id, *info.aliases) and info.kind == "chat"
        if is_meant and "embeddings" not in info.capabilities:
            raise InvalidRequest(
                f"model: {info.id} is a chat model. --embeddings-from-chat lets it embed; "
                "--embedding-model loads one made for it",
                param="model",
            )
