"""Embedding and rerank models in this process, beside answers that numpy computed."""

from __future__ import annotations

import base64
import json
import math
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ferrum_local.engine.facade import LocalEngine
from ferrum_local.errors import (
    ContextOverflow,
    DeadlineExceeded,
    FerrumError,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
)
from ferrum_local.types import EmbeddingRequest, LlmOptions, ModelSpec, RerankRequest
from tests.conftest import MINILM, MINILM_Q8_0, SMOLLM2
from tests.engine.tiny_bert import N_CTX, TinyBert, ids_of, write_tiny_bert
from tests.vectors import cosine

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "data" / "minilm_reference.json").read_text("utf-8")
)["entries"]
PARAPHRASES = json.loads(
    (Path(__file__).parents[1] / "data" / "paraphrases.json").read_text("utf-8")
)


def embedding_spec(path: Path, model_id: str = "it") -> ModelSpec:
    return ModelSpec(id=model_id, path=str(path), kind="embedding")


def vectors(
    engine: LocalEngine, inputs: Sequence[object], model: str = "it", **more: object
) -> list[array[float]]:
    request = EmbeddingRequest(id="e", model_id=model, inputs=tuple(inputs), **more)  # type: ignore[arg-type]
    return list(engine.embed(request).vectors)


Load = Callable[..., LocalEngine]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """Loads engines that live as long as this file's tests."""
    engines: list[LocalEngine] = []

    def run(*specs: ModelSpec, **options: object) -> LocalEngine:
        engines.append(LocalEngine(specs, LlmOptions(**options)))  # type: ignore[arg-type]
        engines[-1].load()
        return engines[-1]

    yield run
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def minilm(load: Load) -> LocalEngine:
    return load(embedding_spec(MINILM))


# -- the real model ----------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "least"), [(MINILM, 0.999), (MINILM_Q8_0, 0.99)])
def test_vectors_are_those_of_the_reference_implementation(
    load: Load, path: Path, least: float
) -> None:
    engine = load(embedding_spec(path))
    found = vectors(engine, [entry["text"] for entry in REFERENCE])
    for entry, vector in zip(REFERENCE, found, strict=True):
        reference = np.frombuffer(base64.b64decode(entry["float32_base64"]), "<f4")
        assert cosine(vector, reference.tolist()) >= least, entry["text"]


@pytest.mark.parametrize("entry", REFERENCE, ids=lambda entry: ascii(entry["text"][:20]))
def test_texts_have_the_tokens_of_the_reference_implementation(
    minilm: LocalEngine, entry: dict[str, object]
) -> None:
    request = EmbeddingRequest(id="e", model_id="it", inputs=(str(entry["text"]),))
    assert minilm.embed(request).prompt_tokens == entry["n_tokens"]


def test_a_paraphrase_is_nearer_than_an_unrelated_sentence(minilm: LocalEngine) -> None:
    assert len(PARAPHRASES) == 30
    found = vectors(minilm, [text for triple in PARAPHRASES for text in triple])
    for i, triple in enumerate(PARAPHRASES):
        sentence, paraphrase, unrelated = found[3 * i : 3 * i + 3]
        assert cosine(sentence, paraphrase) > cosine(sentence, unrelated), triple


def test_emb_02_many_inputs_in_one_call_equal_single_calls(minilm: LocalEngine) -> None:
    texts = [f"{'word ' * (i * 3 % 50)}number {i}" for i in range(33)]
    together = vectors(minilm, texts)
    assert len(together) == 33
    for text, vector in zip(texts, together, strict=True):
        assert cosine(vector, vectors(minilm, [text])[0]) >= 0.9999


def test_emb_07_dimensions_cut_and_normalise_again(minilm: LocalEngine) -> None:
    (whole,) = vectors(minilm, ["hello world"])
    (cut,) = vectors(minilm, ["hello world"], dimensions=64)
    assert len(cut) == 64
    assert math.isclose(math.fsum(x * x for x in cut), 1.0, rel_tol=1e-5)
    assert cosine(cut, whole[:64]) > 0.99999
    with pytest.raises(InvalidRequest, match="vectors of 384 numbers, got 385"):
        vectors(minilm, ["hello world"], dimensions=385)


def test_emb_03_a_text_that_is_too_long_is_refused_with_both_numbers(minilm: LocalEngine) -> None:
    with pytest.raises(ContextOverflow, match=r"input\[1\].*602 tokens.*at most 512") as caught:
        vectors(minilm, ["fine", "a " * 600])
    assert caught.value.param == "input[1]"
    assert vectors(minilm, ["the model still answers"])


def test_truncate_cuts_at_the_end_keeps_the_last_marker_and_says_so(minilm: LocalEngine) -> None:
    request = EmbeddingRequest(id="e", model_id="it", inputs=("short", "a " * 600), truncate=True)
    response = minilm.embed(request)
    assert response.truncated == (1,)
    fitting = vectors(minilm, ["a " * 510])[0]
    assert cosine(response.vectors[1], fitting) > 0.9999


def test_token_ids_are_taken_as_they_are(minilm: LocalEngine) -> None:
    by_ids, by_text = vectors(minilm, [(101, 7592, 2088, 102)]), vectors(minilm, ["hello world"])
    assert cosine(by_ids[0], by_text[0]) > 0.9999
    with pytest.raises(InvalidRequest, match=r"input\[0\]\[1\].*0 to 30521"):
        vectors(minilm, [(101, 30522)])


@pytest.mark.parametrize("ids", [(7592, 2088), (101, 7592), (7592, 102), (101,)], ids=str)
def test_token_ids_of_another_vocabulary_are_refused_rather_than_misread(
    minilm: LocalEngine, ids: tuple[int, ...]
) -> None:
    """They lack the markers that every text of this model has, or are too large."""
    hint = "begin with 101 and end with 102.*check_embedding_ctx_length=False"
    with pytest.raises(InvalidRequest, match=hint) as caught:
        vectors(minilm, [(101, 102), ids])
    assert caught.value.param == "input[1]"
    with pytest.raises(InvalidRequest, match="0 to 30521.*check_embedding_ctx_length=False"):
        vectors(minilm, [(*ids, 100_000)])


def test_token_ids_that_are_cut_keep_their_last_marker(minilm: LocalEngine) -> None:
    request = EmbeddingRequest(
        id="e", model_id="it", inputs=((101, *[1037] * 600, 102),), truncate=True
    )
    response = minilm.embed(request)
    assert response.truncated == (0,)
    assert cosine(response.vectors[0], vectors(minilm, ["a " * 510])[0]) > 0.9999


def test_tokens_are_counted_without_embedding(minilm: LocalEngine) -> None:
    assert list(minilm.count_embedding_tokens(["", "hello world", "a " * 600])) == [2, 4, 602]


def test_markers_within_a_text_are_plain_text(minilm: LocalEngine) -> None:
    plain, marked = vectors(minilm, ["one [SEP] two", "one sep two"])
    (real,) = vectors(minilm, [(101, 2028, 102, 2048, 102)])
    assert cosine(plain, marked) > cosine(plain, real)


def test_requests_of_many_threads_share_steps(minilm: LocalEngine) -> None:
    before = {m.model_id: m for m in minilm.metrics().models}["it"]
    n_threads = 24
    barrier = threading.Barrier(n_threads)
    found: dict[int, array[float]] = {}

    def ask(i: int) -> None:
        barrier.wait()
        found[i] = vectors(minilm, [f"text {i}"])[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = {m.model_id: m for m in minilm.metrics().models}["it"]
    assert after.steps_total - before.steps_total < n_threads
    for i in range(n_threads):
        assert cosine(found[i], vectors(minilm, [f"text {i}"])[0]) > 0.9999


def test_a_deadline_that_has_passed_ends_the_request(minilm: LocalEngine) -> None:
    with pytest.raises(DeadlineExceeded):
        vectors(minilm, ["word " * 400] * 64, deadline_s=1e-9)


def test_a_client_that_left_ends_the_request(minilm: LocalEngine) -> None:
    request = EmbeddingRequest(id="e", model_id="it", inputs=("word " * 400,) * 64)
    with pytest.raises(FerrumError, match="left"):
        minilm.embed(request, is_abandoned=lambda: True)
    assert minilm.status().active_requests == 0


# -- pooling, on a model whose answers are computed independently ------------------------------

TEXT, PIECES = "The cats sat on the mat.", "the cat ##s sat on the mat ."


def test_a_text_becomes_its_word_pieces(load: Load, tmp_path: Path) -> None:
    tiny = write_tiny_bert(tmp_path / "tiny.gguf", pooling="mean")
    engine = load(embedding_spec(tmp_path / "tiny.gguf"))
    (found,) = vectors(engine, [TEXT])
    assert cosine(found, tiny.vector(ids_of(PIECES), "mean").tolist()) > 0.99999


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_is_as_the_file_says(load: Load, tmp_path: Path, pooling: str) -> None:
    tiny = write_tiny_bert(tmp_path / "tiny.gguf", pooling=pooling)
    engine = load(embedding_spec(tmp_path / "tiny.gguf"))
    texts = [TEXT, "dogs ran fast", "blue"]
    pieces = [PIECES, "dog ##s ran fast", "blue"]
    for found, expected in zip(vectors(engine, texts), pieces, strict=True):
        assert cosine(found, tiny.vector(ids_of(expected), pooling).tolist()) > 0.99999


@pytest.mark.parametrize("said", [None, "none"])
def test_a_file_that_is_silent_about_pooling_gets_the_mean(
    load: Load, tmp_path: Path, said: str | None
) -> None:
    tiny = write_tiny_bert(tmp_path / "tiny.gguf", pooling=said)
    engine = load(embedding_spec(tmp_path / "tiny.gguf"))
    (found,) = vectors(engine, [TEXT])
    assert cosine(found, tiny.vector(ids_of(PIECES), "mean").tolist()) > 0.99999


def test_pooling_can_be_chosen(load: Load, tmp_path: Path) -> None:
    tiny = write_tiny_bert(tmp_path / "tiny.gguf", pooling="mean")
    engine = load(embedding_spec(tmp_path / "tiny.gguf"), embedding_pooling="cls")
    (found,) = vectors(engine, [TEXT])
    assert cosine(found, tiny.vector(ids_of(PIECES), "cls").tolist()) > 0.99999


def test_the_longest_text_can_be_bounded(load: Load, tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "tiny.gguf", pooling="mean")
    engine = load(embedding_spec(tmp_path / "tiny.gguf"), embedding_ctx_size=16)
    assert vectors(engine, ["cat " * 14])
    with pytest.raises(ContextOverflow, match="17 tokens and it reads at most 16"):
        vectors(engine, ["cat " * 15])


def test_no_text_is_longer_than_the_model_has_positions(load: Load, tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "tiny.gguf", pooling="mean")
    engine = load(embedding_spec(tmp_path / "tiny.gguf"), embedding_ctx_size=4096)
    assert vectors(engine, ["cat " * (N_CTX - 2)])
    with pytest.raises(ContextOverflow):
        vectors(engine, ["cat " * (N_CTX - 1)])


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_emb_06_a_vector_that_is_not_finite_is_an_error(
    load: Load, tmp_path: Path, spoil: float
) -> None:
    write_tiny_bert(tmp_path / "tiny.gguf", pooling="mean", spoil=spoil)
    engine = load(embedding_spec(tmp_path / "tiny.gguf"))
    with pytest.raises(GenerationFailed, match=r"input\[1\].*not finite"):
        vectors(engine, ["the cat", "the blue cat"])
    assert vectors(engine, ["the cat"])


# -- prefixes ----------------------------------------------------------------------------------


def test_the_prefixes_of_a_known_family_are_put_first(load: Load) -> None:
    engine = load(embedding_spec(MINILM, "my-e5-small"))
    plain, query, document = (
        vectors(engine, ["the weather"], "my-e5-small", input_type=kind)[0]
        for kind in (None, "query", "document")
    )
    spelled = vectors(
        engine, ["the weather", "query: the weather", "passage: the weather"], "my-e5-small"
    )
    for found, expected in zip((plain, query, document), spelled, strict=True):
        assert cosine(found, expected) > 0.9999


def test_a_family_can_be_named_and_prefixes_turned_off(load: Load) -> None:
    named = load(embedding_spec(MINILM), embedding_prefix="nomic-embed")
    (found,) = vectors(named, ["x"], input_type="document")
    assert cosine(found, vectors(named, ["search_document: x"])[0]) > 0.9999
    off = load(embedding_spec(MINILM, "e5"), embedding_prefix="none")
    (found,) = vectors(off, ["x"], "e5", input_type="query")
    assert cosine(found, vectors(off, ["x"], "e5")[0]) > 0.9999


# -- chat models -------------------------------------------------------------------------------


def test_emb_05_a_chat_model_says_how_it_can_embed(engine: LocalEngine) -> None:
    with pytest.raises(InvalidRequest, match="--embeddings-from-chat.*--embedding-model"):
        vectors(engine, ["x"], SMOLLM2.stem)
    with pytest.raises(ModelNotFound, match="--embedding-model loads one"):
        vectors(engine, ["x"], "")


def test_a_chat_model_embeds_when_it_may(load: Load) -> None:
    chat = ModelSpec(id="chat", path=str(SMOLLM2))
    engine = load(chat, embeddings_from_chat=True, ctx_size=256, slots=1)
    texts = ["A man is eating food.", "A man eats a meal.", "The stock market fell sharply."]
    together = vectors(engine, texts, "chat")
    assert cosine(together[0], together[1]) > cosine(together[0], together[2])
    for text, vector in zip(texts, together, strict=True):
        assert cosine(vector, vectors(engine, [text], "")[0]) >= 0.9999
    (info,) = engine.status().models
    assert info.capabilities == ("chat", "completion", "embeddings")


# -- rerank ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranker(load: Load, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalEngine, TinyBert]:
    path = tmp_path_factory.mktemp("rank") / "rank.gguf"
    tiny = write_tiny_bert(path, pooling="rank")
    return load(embedding_spec(MINILM, "vectors"), embedding_spec(path, "ranks")), tiny


def test_a_rank_model_reads_query_and_document_together(
    ranker: tuple[LocalEngine, TinyBert],
) -> None:
    engine, tiny = ranker
    documents = ("the cat sat", "dogs ran fast", "blue mat")
    pieces = ("the cat sat", "dog ##s ran fast", "blue mat")
    request = RerankRequest(id="r", model_id="", query="the dog", documents=documents)
    response = engine.rerank(request)
    assert (response.model_id, response.method) == ("ranks", "cross-encoder")
    for i, text in enumerate(pieces):
        expected = tiny.score(ids_of(f"the dog [SEP] {text}"))
        assert response.raw_scores[i] == pytest.approx(expected, abs=1e-3)
        assert response.scores[i] == pytest.approx(1 / (1 + math.exp(-expected)), abs=1e-3)


def test_without_a_rank_model_the_likeness_of_vectors_decides(
    ranker: tuple[LocalEngine, TinyBert],
) -> None:
    engine, _ = ranker
    documents = ("Bananas are yellow.", "Paris is the capital of France.")
    query = "What is the capital of France?"
    response = engine.rerank(
        RerankRequest(id="r", model_id="vectors", query=query, documents=documents)
    )
    assert (response.model_id, response.method) == ("vectors", "embedding-similarity")
    q, *found = vectors(engine, [query, *documents], "vectors")
    assert list(response.scores) == pytest.approx([cosine(q, d) for d in found], abs=1e-4)


def test_a_rank_model_makes_no_vectors(ranker: tuple[LocalEngine, TinyBert]) -> None:
    engine, _ = ranker
    with pytest.raises(InvalidRequest, match="/v1/rerank"):
        vectors(engine, ["x"], "ranks")
    kinds = {info.id: info.capabilities for info in engine.status().models}
    assert kinds == {"vectors": ("embeddings",), "ranks": ("rerank",)}


def test_a_long_document_is_refused_or_cut_but_never_the_query(
    ranker: tuple[LocalEngine, TinyBert],
) -> None:
    engine, _ = ranker
    request = RerankRequest(
        id="r", model_id="ranks", query="the dog", documents=("cat", "cat " * 100), param="texts"
    )
    with pytest.raises(ContextOverflow, match=r"texts\[1\]: with the query it has 105 tokens"):
        engine.rerank(request)
    cut = engine.rerank(msgspec.structs.replace(request, truncate=True))
    assert cut.truncated == (1,)
    with pytest.raises(ContextOverflow):
        engine.rerank(msgspec.structs.replace(request, query="dog " * 100, truncate=True))


@pytest.mark.parametrize(("pooling", "method"), [("rank", "score"), ("mean", "vector")])
def test_a_document_that_cannot_be_scored_is_named(
    load: Load, tmp_path: Path, pooling: str, method: str
) -> None:
    path = tmp_path / f"{method}.gguf"
    write_tiny_bert(path, pooling=pooling, spoil=math.nan)
    engine = load(embedding_spec(path))
    request = RerankRequest(id="r", model_id="", query="cat", documents=("dog", "the blue cat"))
    with pytest.raises(GenerationFailed, match=r"^documents\[1\]: .*not finite"):
        engine.rerank(request)
    texts = msgspec.structs.replace(request, query="dog", documents=("blue",), param="texts")
    with pytest.raises(GenerationFailed, match=r"^texts\[0\]: .*not finite"):
        engine.rerank(texts)


def test_a_query_that_has_no_vector_is_named(load: Load, tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "tiny.gguf", pooling="mean", spoil=math.nan)
    engine = load(embedding_spec(tmp_path / "tiny.gguf"))
    with pytest.raises(GenerationFailed, match=r"^query: .*not finite"):
        engine.rerank(RerankRequest(id="r", model_id="", query="blue", documents=("dog",)))
