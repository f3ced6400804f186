"""What a request can be cancelled by, of whichever kind it is."""

from __future__ import annotations

import io

import pytest

from ferrum_local.audio_types import SpeechRequest, TranscriptionRequest
from ferrum_local.engine.speech_jobs import TranscriptionJob
from ferrum_local.llm.generation import Generation
from ferrum_local.request_names import Named, request_names
from ferrum_local.types import EmbeddingRequest, InferenceRequest, RerankRequest

BY_HTTP = {"x_request_id": "req-1", "a": "b"}


@pytest.mark.parametrize(
    "request_",
    [
        InferenceRequest(id="a", model_id="m", prompt="p", metadata=BY_HTTP),
        EmbeddingRequest(id="a", model_id="m", inputs=("t",), metadata=BY_HTTP),
        RerankRequest(id="a", model_id="m", query="q", documents=("d",), metadata=BY_HTTP),
        SpeechRequest(id="a", model_id="m", text="t", metadata=BY_HTTP),
        TranscriptionRequest(id="a", model_id="m", file=io.BytesIO(), metadata=BY_HTTP),
    ],
    ids=lambda request_: type(request_).__name__,
)
def test_a_request_is_known_by_its_id_and_by_that_of_http(request_: Named) -> None:
    assert request_names(request_) == {"a", "req-1"}


@pytest.mark.parametrize("metadata", [{}, {"a": "b"}, {"x_request_id": ""}])
def test_without_http_it_is_known_by_its_id_alone(metadata: dict[str, str]) -> None:
    asked = InferenceRequest(id="a", model_id="m", prompt="p", metadata=metadata)
    assert request_names(asked) == {"a"}


def test_what_runs_keeps_the_names_of_its_request() -> None:
    heard = TranscriptionRequest(id="a", model_id="m", file=io.BytesIO(), metadata=BY_HTTP)
    asked = InferenceRequest(id="a", model_id="m", prompt="p", metadata=BY_HTTP)
    generation = Generation(asked, prompt_tokens=[1], token_bytes=lambda _token: b"")
    assert TranscriptionJob(heard).names == generation.names == {"a", "req-1"}
