"""LangChain's ``OpenAIEmbeddings`` against a real server."""

from __future__ import annotations

import asyncio
import math

import openai
import pytest
import tiktoken
import tiktoken.registry
from langchain_openai import OpenAIEmbeddings

from tests.conftest import RunningServer

TEXTS = ["A man is eating food.", "A man eats a meal.", "The stock market fell sharply."]


def embeddings(server: RunningServer, **settings: object) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key="none", model="minilm", max_retries=0,
        **settings,
    )  # type: ignore[arg-type]  # fmt: skip


def cosine(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_emb_01_texts_get_the_vectors_that_the_sdk_gets(embedding_server: RunningServer) -> None:
    model = embeddings(embedding_server, check_embedding_ctx_length=False)
    found = model.embed_documents(TEXTS)
    reply = embedding_server.client().embeddings.create(
        model="minilm", input=TEXTS, encoding_format="float"
    )
    for vector, item in zip(found, reply.data, strict=True):
        assert vector == pytest.approx(item.embedding, abs=1e-6)
    query = model.embed_query("Somebody has a meal.")
    assert len(query) == 384
    assert cosine(query, found[1]) > cosine(query, found[2])


def test_it_works_asynchronously_in_small_requests_and_with_fewer_dimensions(
    embedding_server: RunningServer,
) -> None:
    model = embeddings(
        embedding_server, check_embedding_ctx_length=False, chunk_size=2, dimensions=64
    )
    found = asyncio.run(model.aembed_documents(TEXTS))
    assert [len(vector) for vector in found] == [64] * 3
    assert found == [pytest.approx(vector, abs=1e-5) for vector in model.embed_documents(TEXTS)]


def test_with_nothing_set_the_error_says_what_to_set(
    embedding_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends token ids of OpenAI's vocabulary then, which it would fetch from the internet; here
    a small one stands in for it. No id of it may be taken for one of the model's own."""
    bytes_alone = tiktoken.Encoding(
        "cl100k_base",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={},
    )
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "cl100k_base", bytes_alone)
    model = embeddings(embedding_server)
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as caught:
        model.embed_documents(TEXTS)
    assert caught.value.param == "input[0]"
