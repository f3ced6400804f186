"""What makes vectors for a command: a model in this process, or a server that runs."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from ferrum_local.cli.server_address import connect, server_options

if TYPE_CHECKING:
    from ferrum_local.cli.client import ServerClient
    from ferrum_local.engine.facade import LocalEngine
    from ferrum_local.types import InputType, ModelSpec

model_option = click.option(
    "--model",
    "--embedding-model",
    "model",
    metavar="PATH",
    help="GGUF file or name of an embedding model; with --url a model there.  [the starter]",
)
vectors_server_options = server_options("A running server that makes the vectors.")

_SAMPLE_BYTES = 1024 * 1024
# A text has fewer tokens than its bytes over this, in nearly every language.
_BYTES_A_TOKEN = 3


class Vectors(Protocol):
    """Makes vectors of length 1. ``identity`` changes when the model does."""

    identity: str
    max_tokens: int  # of a text, with its prefix and markers

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Of each text, with the markers around it."""
        ...

    def embed(
        self,
        texts: Sequence[str],
        *,
        input_type: InputType | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Sequence[array[float]]:
        """:raises FerrumError: naming what cannot be embedded."""
        ...


@contextmanager
def open_vectors(
    model: str | None, url: str | None = None, api_key: str | None = None
) -> Iterator[Vectors]:
    """:param model: a GGUF file or a known name, with ``url`` the server's name for a model.
    :param url: of a server. None: the model is loaded here, the starter model if none is named.
    :raises FerrumError: there is no such model, or no such server.
    """
    if url is not None:
        yield ServerVectors(connect(url, api_key), model)
        return
    spec = find_model(model)
    from ferrum_local.engine.facade import LocalEngine

    engine = LocalEngine([spec])
    engine.load()
    try:
        yield EngineVectors(engine, spec)
    finally:
        engine.close()


def find_model(argument: str | None) -> ModelSpec:
    """The embedding model in a file or of a name that the settings know, or the starter model.

    :raises FerrumError: it is not there, or not a model.
    """
    from ferrum_local.cli.found_models import CHAT, EMBEDDING, find_models, model_at
    from ferrum_local.cli.serve import check_models
    from ferrum_local.config import resolve
    from ferrum_local.config.models import find_starter
    from ferrum_local.types import ModelSpec

    if argument is None:
        path = find_starter("embedding", (), os.environ)
    else:
        known = find_models(resolve({}, os.environ, cwd=Path.cwd()), os.environ)
        can_embed = tuple(model for model in known if model.kind in (EMBEDDING, CHAT))
        path = model_at(argument, can_embed).spec.path
    spec = ModelSpec(id=Path(path).stem, path=os.path.abspath(path), kind="embedding")
    check_models((spec,))
    return spec


class EngineVectors:
    """Of a model that was loaded here."""

    def __init__(self, engine: LocalEngine, spec: ModelSpec) -> None:
        self._engine = engine
        self.identity = f"{spec.id} {_sample_hash(spec.path)}"
        self.max_tokens = engine.resolve_model(spec.id, "embedding").context_length

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        return self._engine.count_embedding_tokens(texts)

    def embed(
        self,
        texts: Sequence[str],
        *,
        input_type: InputType | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Sequence[array[float]]:
        from ferrum_local.types import EmbeddingRequest

        request = EmbeddingRequest(
            id="command",
            model_id="",
            inputs=tuple(texts),
            input_type=input_type,
            dimensions=dimensions,
            truncate=truncate,
        )
        return self._engine.embed(request).vectors


def _sample_hash(path: str) -> str:
    """Of the file's size, beginning and end; all of a large model would take seconds."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = hashlib.sha256(str(size).encode())
        for position in (0, max(0, size - _SAMPLE_BYTES)):
            file.seek(position)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


class ServerVectors:
    """Of a running ferrum-local.

    :param model: the name of a model there; None: its first that makes vectors.
    """

    def __init__(self, client: ServerClient, model: str | None) -> None:
        self._client = client
        self._fields = {} if model is None else {"model": model}
        used = client.post("/v1/embeddings", {"input": "hello", **self._fields})["model"]
        (info,) = [m for m in client.get("/v1/models")["data"] if m["id"] == used]
        self.identity = f"{used} {info.get('size_bytes')} {info['created']}"
        self.max_tokens = int(info["context_length"])

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """An estimate, seldom too low."""
        return [2 + -(-len(text.encode("utf-8", "replace")) // _BYTES_A_TOKEN) for text in texts]

    def embed(
        self,
        texts: Sequence[str],
        *,
        input_type: InputType | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Sequence[array[float]]:
        fields = {"input_type": input_type, "dimensions": dimensions, "truncate": truncate or None}
        given = {name: value for name, value in fields.items() if value is not None}
        reply = self._client.post(
            "/v1/embeddings",
            {"input": list(texts), "encoding_format": "base64", **given, **self._fields},
        )
        return [_from_base64(item["embedding"]) for item in reply["data"]]


def _from_base64(text: str) -> array[float]:
    """Little-endian float32, as servers send it."""
    vector = array("f", base64.b64decode(text))
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
