"""``/v1/embeddings`` and ``/v1/rerank`` over HTTP: the official SDK, every input form, errors."""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from tests.conftest import MINILM, SMOLLM2, RunningServer, serve
from tests.contract.live import RawClient, scrape, value
from tests.contract.raw import Reply, post
from tests.engine.tiny_bert import write_tiny_bert
from tests.engine.tiny_models import write_llama
from tests.engine.tiny_vision import write_tiny_vision
from tests.fakes import wait_until
from tests.tiny_clip import write_tiny_clip
from tests.vectors import cosine

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
WIDTH = 384
DOCUMENTS = ["Bananas are yellow.", "Paris is the capital of France.", "Berlin is in Germany."]
QUERY = "What is the capital of France?"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A chat model that may not embed, MiniLM, a tiny rank model, and one that is damaged; loaded
    in that order."""
    ranks = tmp_path_factory.mktemp("rank") / "ranks.gguf"
    write_tiny_bert(ranks, pooling="rank")
    damaged = ranks.with_name("damaged.gguf")
    write_tiny_bert(damaged, pooling="mean", spoil=math.nan)
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--ctx-size", "256", "--slots", "1",
        "--embedding-model", f"minilm={MINILM}", "--embedding-model", f"ranks={ranks}",
        "--embedding-model", f"damaged={damaged}",
        "--alias", "text-embedding-3-small=minilm",
    )  # fmt: skip


def embed(server: RunningServer, input: object, **fields: object) -> Reply:
    return post(server.url, EMBEDDINGS, {"input": input, **fields})


def vectors(reply: Reply) -> list[list[float]]:
    assert reply.status == 200, reply.body
    data = reply.json["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["embedding"] for item in data]


def refused(reply: Reply, param: str | None, *texts: str, status: int = 400) -> dict[str, Any]:
    assert reply.status == status, reply.body
    error = reply.error
    assert error["param"] == param
    for text in texts:
        assert text in error["message"]
    return error


# -- embeddings --------------------------------------------------------------------------------


def test_emb_01_the_sdk_with_nothing_set_gets_the_numbers_it_would_get_as_floats(
    server: RunningServer,
) -> None:
    client = server.client()
    by_default = client.embeddings.create(model="minilm", input="hello world")
    as_floats = client.embeddings.create(
        model="minilm", input="hello world", encoding_format="float"
    )
    (one,), (other,) = by_default.data, as_floats.data
    assert len(one.embedding) == WIDTH
    assert one.embedding == pytest.approx(other.embedding, abs=1e-7)
    assert math.isclose(math.hypot(*one.embedding), 1.0, rel_tol=1e-5)
    assert (by_default.model, by_default.object, one.object) == ("minilm", "list", "embedding")
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == 4


def test_emb_01_base64_is_little_endian_float32_and_other_formats_are_named(
    server: RunningServer,
) -> None:
    (encoded,) = vectors(embed(server, "hello world", encoding_format="base64"))
    (floats,) = vectors(embed(server, "hello world", encoding_format="float"))
    decoded = struct.unpack(f"<{WIDTH}f", base64.b64decode(str(encoded)))
    assert list(decoded) == pytest.approx(floats, abs=1e-7)
    assert embed(server, "hello world").json["data"][0]["embedding"] == floats
    refused(embed(server, "x", encoding_format="md5"), "encoding_format", "base64, float", "md5")


@pytest.mark.parametrize(
    "input",
    [
        "hello world",
        ["hello world"],
        [101, 7592, 2088, 102],
        [[101, 7592, 2088, 102]],
        {"text": "hello world"},
        [{"text": "hello world"}],
    ],
    ids=["text", "texts", "ids", "lists of ids", "object", "objects"],
)
def test_every_form_of_input_means_the_same(server: RunningServer, input: object) -> None:
    reply = embed(server, input)
    (found,) = vectors(reply)
    (expected,) = vectors(embed(server, "hello world"))
    assert cosine(found, expected) > 0.9999
    assert reply.json["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_emb_02_33_inputs_in_one_call_equal_33_single_calls(server: RunningServer) -> None:
    client = server.client()
    texts = ["Hello", "World", *(f"text {i} {'and more ' * (i % 7)}" for i in range(31))]
    together = client.embeddings.create(model="minilm", input=texts)
    assert [item.index for item in together.data] == list(range(33))
    for text, item in zip(texts, together.data, strict=True):
        alone = client.embeddings.create(model="minilm", input=text)
        assert cosine(item.embedding, alone.data[0].embedding) >= 0.9999
    assert together.usage.prompt_tokens > 33


def test_emb_03_a_text_of_too_many_tokens_is_a_400_and_the_server_lives(
    server: RunningServer,
) -> None:
    error = refused(embed(server, "a " * 600), "input[0]", "602", "512", "truncate")
    assert error["code"] == "context_length_exceeded"
    refused(embed(server, ["fine", "a " * 600]), "input[1]")
    assert vectors(embed(server, "a " * 500))


def test_truncation_is_asked_for_and_reported(server: RunningServer) -> None:
    reply = embed(server, ["short", "a " * 600], truncate=True)
    assert [item.get("truncated") for item in reply.json["data"]] == [None, True]
    assert reply.json["usage"]["prompt_tokens"] == 3 + 512


def test_emb_05_a_chat_model_is_a_400_that_says_what_to_do(server: RunningServer) -> None:
    refused(embed(server, "x", model="smol"), "model", "--embeddings-from-chat", "chat model")


def test_emb_06_numbers_that_are_not_finite_are_an_error_and_never_in_the_json(
    server: RunningServer,
) -> None:
    for format in ("float", "base64"):
        reply = embed(server, ["the cat", "blue"], model="damaged", encoding_format=format)
        error = refused(reply, None, "input[1]", "not finite", status=500)
        assert error["type"] == "server_error"
        assert b"NaN" not in reply.body and b"null]" not in reply.body
    reply = rank(server, model="damaged", documents=["the cat", "blue"], query="dog")
    refused(reply, None, "documents[1]", "not finite", status=500)
    assert vectors(embed(server, ["the cat"], model="damaged"))


def test_emb_07_dimensions_cut_and_normalise_or_are_refused(server: RunningServer) -> None:
    response = server.client().embeddings.create(model="minilm", input="hello", dimensions=64)
    cut = response.data[0].embedding
    (whole,) = vectors(embed(server, "hello"))
    assert len(cut) == 64
    assert math.isclose(math.hypot(*cut), 1.0, rel_tol=1e-5)
    assert cosine(cut, whole[:64]) > 0.99999
    refused(embed(server, "hello", dimensions=385), "dimensions", "384", "385")
    refused(embed(server, "hello", dimensions=0), "dimensions")


def test_models_are_found_by_name_alias_and_default(server: RunningServer) -> None:
    for name in ("minilm", "text-embedding-3-small", "default", "", None):
        assert embed(server, "x", model=name).json["model"] == "minilm"
    error = refused(embed(server, "x", model="ada-002"), "model", "minilm", status=404)
    assert error["code"] == "model_not_found"
    listed = {m.id: m for m in server.client().models.list().data}
    assert listed["minilm"].capabilities == ["embeddings"]  # type: ignore[attr-defined]
    assert listed["minilm"].context_length == 512  # type: ignore[attr-defined]
    assert listed["ranks"].capabilities == ["rerank"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([""], "input[0]"),
        (["a", ""], "input[1]"),
        (["a", 1], "input[1]"),
        (["a", None], "input[1]"),
        ([[1], []], "input[1]"),
        ([1, 30522], "input[0][1]"),
        ([-1], "input[0][0]"),
        ({}, "input"),
        ({"text": "a", "image": "YQ=="}, "input"),
        ([{"text": "a"}, {"text": ""}], "input[1].text"),
        ([{"image": "not base64!"}], "input[0].image"),
        ([{"image": "https://example.com/cat.png"}], "input[0].image"),
        ([{"image": "YQ=="}], "input[0].image"),
        ([{"video": "x"}], "input[0].video"),
        (3, "input"),
        (None, "input"),
        (["a"] * 2049, "input"),
    ],
    ids=str,
)
def test_bad_input_is_a_400_that_names_the_item(
    server: RunningServer, input: object, param: str
) -> None:
    refused(embed(server, input), param)


def test_a_wrong_field_is_named(server: RunningServer) -> None:
    refused(post(server.url, EMBEDDINGS, {"inputs": "a"}), "inputs", "did you mean input?")
    refused(post(server.url, EMBEDDINGS, {}), "input", "missing")
    refused(embed(server, "x", input_type="classification"), "input_type", "query")


def test_64_clients_with_one_text_each_are_all_answered(server: RunningServer) -> None:
    before = value(scrape(server.url), "ferrum_steps_total", model="minilm")
    replies: list[Reply] = []
    threads = [
        threading.Thread(target=lambda i=i: replies.append(embed(server, f"client {i}")))
        for i in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * 64
    after = scrape(server.url)
    assert value(after, "ferrum_steps_total", model="minilm") - before < 64
    assert value(after, "ferrum_running_sequences", model="minilm") == 0


def test_a_client_that_leaves_has_its_work_cancelled(server: RunningServer) -> None:
    def cancelled() -> float:
        return value(scrape(server.url), "ferrum_cancelled_total", model="minilm")

    before = cancelled()
    with RawClient(server) as client:
        client.post(EMBEDDINGS, {"input": ["word " * 500] * 400})
        wait_until(
            lambda: value(scrape(server.url), "ferrum_running_sequences", model="minilm") > 0, 60.0
        )
    wait_until(lambda: cancelled() == before + 1, 60.0)


def test_a_time_limit_is_a_504(server: RunningServer) -> None:
    body = {"input": ["word " * 500] * 200}
    reply = post(server.url, EMBEDDINGS, body, {"X-Ferrum-Timeout": "0.001"})
    assert reply.status == 504


def test_nothing_but_the_starter_models_is_needed(tmp_path: Any) -> None:
    for server in serve("--ctx-size", "256", "--slots", "1"):
        with urllib.request.urlopen(f"{server.url}/health") as response:
            models = {m["id"]: m["kind"] for m in json.load(response)["models"]}
        assert models == {
            SMOLLM2.stem: "chat",
            MINILM.stem: "embedding",
            "whisper-tiny.en": "transcription",
            "en_US-joe-medium": "speech",
        }
        response = server.client().embeddings.create(model="minilm", input="hello")
        assert response.model == MINILM.stem


def test_a_server_without_an_embedding_model_names_the_flag() -> None:
    for server in serve("--model", str(SMOLLM2), "--ctx-size", "256", "--slots", "1"):
        with pytest.raises(openai.NotFoundError, match="--embedding-model loads one"):
            server.client().embeddings.create(model="", input="hello")


# -- images ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny CLIP; files of this machine are allowed."""
    root = tmp_path_factory.mktemp("clip")
    write_tiny_clip(root)
    yield from serve("--image-embedding-model", f"clip={root}", "--allow-local-files")


def red_png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (9, 7), (200, 30, 10)).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_image_is_a_data_url_base64_or_a_file_that_may_be_read(
    image_server: RunningServer, tmp_path: Path
) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(red_png())
    encoded = base64.b64encode(red_png()).decode()
    forms = [f"data:image/png;base64,{encoded}", encoded, str(path), f"file://{path}"]
    # What the file is says its content, not its label.
    forms.append(f"data:image/jpeg;base64,{encoded}")
    found = vectors(embed(image_server, [{"image": form} for form in forms]))
    assert all(vector == pytest.approx(found[0], abs=1e-6) for vector in found)
    (single,) = vectors(embed(image_server, {"image": encoded}))
    assert single == pytest.approx(found[0], abs=1e-6)


def test_texts_and_images_go_together_and_only_texts_count(image_server: RunningServer) -> None:
    encoded = base64.b64encode(red_png()).decode()
    reply = embed(image_server, [{"text": "a cat"}, {"image": encoded}, {"text": "red"}])
    assert len(vectors(reply)) == 3
    assert reply.json["usage"]["prompt_tokens"] == 4 + 3
    assert reply.json["model"] == "clip"


def test_a_gguf_model_with_a_projector_takes_images_too(tmp_path: Path) -> None:
    model, projector = tmp_path / "seeing.gguf", tmp_path / "mmproj.gguf"
    write_llama(model)
    write_tiny_vision(projector)
    encoded = base64.b64encode(red_png()).decode()
    for seeing in serve("--embedding-model", str(model), "--mmproj", str(projector)):
        reply = embed(seeing, [{"image": encoded}, {"text": "a cat"}, {"image": encoded}])
        first, text, last = vectors(reply)
        assert reply.json["model"] == "seeing"
        assert cosine(first, last) > 0.9999 > cosine(first, text)
        assert reply.json["usage"]["prompt_tokens"] == 1 + len("a cat")
        refused(embed(seeing, [{"image": encoded[:40]}]), "input[0].image")


@pytest.mark.parametrize(
    "image",
    ["", "aGVsbG8=", "data:image/png,plain", "data:image/png;base64,%%%", "/no/such.png",
     "https://example.com/cat.png", base64.b64encode(red_png()[:-30]).decode()],
)  # fmt: skip
def test_vis_02_what_is_no_image_is_a_400(image_server: RunningServer, image: str) -> None:
    refused(embed(image_server, [{"text": "a"}, {"image": image}]), "input[1].image")


def test_files_are_not_read_unless_allowed(server: RunningServer) -> None:
    refused(embed(server, {"image": "/tmp/x.png"}), "input.image", "--allow-local-files")


# -- rerank ------------------------------------------------------------------------------------


def rank(server: RunningServer, path: str = RERANK, **fields: object) -> Reply:
    return post(server.url, path, {"query": QUERY, **fields})


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_come_back_best_first(server: RunningServer, path: str) -> None:
    reply = rank(server, path, model="minilm", documents=DOCUMENTS)
    assert reply.status == 200, reply.body
    body = reply.json
    assert [result["index"] for result in body["results"]] == [1, 2, 0]
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert (body["model"], body["method"]) == ("minilm", "embedding-similarity")
    assert reply.headers["x-rerank-method"] == "embedding-similarity"
    assert "document" not in body["results"][0]
    assert body["usage"]["total_tokens"] > 20


def test_top_n_and_the_documents_themselves_are_given_on_request(server: RunningServer) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    reply = rank(server, model="minilm", documents=documents, top_n=1, return_documents=True)
    (best,) = reply.json["results"]
    assert (best["index"], best["document"]) == (1, {"text": DOCUMENTS[1]})


def test_tei_gets_its_own_shape(server: RunningServer) -> None:
    plain = rank(server, model="minilm", texts=DOCUMENTS).json
    assert [set(item) for item in plain] == [{"index", "score"}] * 3
    with_text = rank(server, model="minilm", texts=DOCUMENTS, return_text=True).json
    assert with_text[0] == {**plain[0], "text": DOCUMENTS[1]}


def test_a_rank_model_is_the_default_and_its_scores_are_probabilities(
    server: RunningServer,
) -> None:
    texts = ["the cat sat", "dogs ran", "blue mat"]
    body = post(server.url, RERANK, {"query": "the dog", "documents": texts}).json
    assert (body["model"], body["method"]) == ("ranks", "cross-encoder")
    assert all(0 < result["relevance_score"] < 1 for result in body["results"])
    tei = {"query": "the dog", "texts": texts}
    raw = {item["index"]: item["score"] for item in post(
        server.url, RERANK, {**tei, "raw_scores": True}
    ).json}  # fmt: skip
    for item in post(server.url, RERANK, tei).json:
        assert item["score"] == pytest.approx(1 / (1 + math.exp(-raw[item["index"]])), abs=1e-5)


def test_a_rank_model_makes_no_vectors(server: RunningServer) -> None:
    refused(embed(server, "x", model="ranks"), "model", "/v1/rerank")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"texts": [""]}, "texts[0]"),
        ({"documents": ["a"], "query": ""}, "query"),
        ({"documents": ["a"], "texts": ["a"]}, "texts"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "return_text": True}, "return_text"),
        ({"texts": ["a"], "return_documents": True}, "return_documents"),
        ({"documents": ["a"] * 1001}, "documents"),
        ({"documents": [{"title": "a"}]}, "documents[0].title"),
        ({"documents": ["a", "a " * 600], "model": "minilm"}, "documents[1]"),
        ({"texts": ["a " * 600], "model": "minilm"}, "texts[0]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_rerank_requests_name_the_field(
    server: RunningServer, fields: dict[str, object], param: str
) -> None:
    refused(rank(server, **fields), param)


def test_a_long_document_is_cut_when_asked_and_said(server: RunningServer) -> None:
    reply = rank(server, model="minilm", documents=["a", "a " * 600], truncate=True)
    cut = {result["index"]: result.get("truncated") for result in reply.json["results"]}
    assert cut == {0: None, 1: True}
