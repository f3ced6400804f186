"""What is measured: a model in this process, or one of a running server."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ferrum_local.cli.quiet_engine import QuietEngine

if TYPE_CHECKING:
    from ferrum_local.cli.client import ServerClient
    from ferrum_local.cli.found_models import FoundModel
    from ferrum_local.types import LlmOptions


class ChatTimes(NamedTuple):
    """``n_prompt`` tokens were evaluated in ``prompt_s``, ``n_generated`` made in
    ``generate_s``; the first one was here after ``ttft_s``."""

    n_prompt: int
    prompt_s: float
    n_generated: int
    generate_s: float
    ttft_s: float

    @property
    def prompt_per_s(self) -> float:
        return self.n_prompt / self.prompt_s if self.prompt_s > 0 else 0.0

    @property
    def generated_per_s(self) -> float:
        # The first token comes with the prompt.
        return (self.n_generated - 1) / self.generate_s if self.generate_s > 0 else 0.0


class Target(Protocol):
    """One model, ready to be asked. Only what its kind can do is called."""

    @property
    def model(self) -> str: ...

    def chat(self, prompt: str, n_tokens: int) -> ChatTimes:
        """Have exactly so many tokens made."""
        ...

    def embed(self, texts: Sequence[str]) -> None: ...

    def speak(self, text: str) -> bytes:
        """The speech as a WAV file of 16-bit samples."""
        ...

    def transcribe(self, recording: bytes) -> float:
        """:returns: the recording's duration in seconds."""
        ...


class EngineTarget:
    """Loads one model into this process; a context manager."""

    def __init__(self, model: FoundModel, options: LlmOptions) -> None:
        self.model = model.spec.id
        self._quiet = QuietEngine([model], options)
        self._engine = self._quiet.engine

    def __enter__(self) -> EngineTarget:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._quiet.close()

    def chat(self, prompt: str, n_tokens: int) -> ChatTimes:
        from ferrum_local.types import ChatPrompt, InferenceRequest, SamplingParams

        request = InferenceRequest(
            id=f"bench-{uuid.uuid4().hex}",
            model_id="",
            prompt=ChatPrompt(messages=({"role": "user", "content": prompt},)),
            sampling_params=SamplingParams(max_tokens=n_tokens, temperature=0.0, ignore_eos=True),
            stream=True,
        )
        with self._engine.infer_stream(request) as stream:
            for _ in stream:
                pass
            timings = stream.timings
        return ChatTimes(
            timings.prompt_n,
            timings.prompt_ms / 1000,
            timings.predicted_n,
            timings.predicted_ms / 1000,
            (timings.ttft_ms or 0.0) / 1000,
        )

    def embed(self, texts: Sequence[str]) -> None:
        from ferrum_local.types import EmbeddingRequest

        request = EmbeddingRequest(id=f"bench-{uuid.uuid4().hex}", model_id="", inputs=tuple(texts))
        self._engine.embed(request)

    def speak(self, text: str) -> bytes:
        import numpy as np

        from ferrum_local.audio import wav
        from ferrum_local.audio_types import SpeechRequest

        stream = self._engine.speak(SpeechRequest(id="bench", model_id="", text=text))
        pcm = b"".join(wav.to_s16(np.frombuffer(part.pcm, "<f4")) for part in stream)
        return wav.header(stream.sample_rate_hz, len(pcm)) + pcm

    def transcribe(self, recording: bytes) -> float:
        from ferrum_local.audio_types import TranscriptionRequest

        stream = self._engine.transcribe(
            TranscriptionRequest(id="bench", model_id="", file=io.BytesIO(recording))
        )
        for _ in stream:
            pass
        return stream.facts.duration_s


class ServerTarget:
    """One model of a running server. Times are those that the server tells, but for the first
    token and what it tells no times of: they include the way there and back."""

    def __init__(self, client: ServerClient, model: str) -> None:
        self.model = model
        self._client = client

    def chat(self, prompt: str, n_tokens: int) -> ChatTimes:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": n_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        started_s = time.monotonic()
        first_s = None
        timings: Mapping[str, Any] = {}
        with self._client.stream("/v1/chat/completions", body) as events:
            for event in events:
                if first_s is None and any(
                    choice.get("delta", {}).get("content") for choice in event.get("choices", ())
                ):
                    first_s = time.monotonic()
                timings = event.get("timings") or timings
        return ChatTimes(
            timings.get("prompt_n", 0),
            timings.get("prompt_ms", 0.0) / 1000,
            timings.get("predicted_n", 0),
            timings.get("predicted_ms", 0.0) / 1000,
            (first_s or time.monotonic()) - started_s,
        )

    def embed(self, texts: Sequence[str]) -> None:
        self._client.post("/v1/embeddings", {"model": self.model, "input": list(texts)})

    def speak(self, text: str) -> bytes:
        body = {"model": self.model, "voice": self.model, "input": text, "response_format": "wav"}
        return self._client.post_for_bytes("/v1/audio/speech", body)

    def transcribe(self, recording: bytes) -> float:
        fields = {"model": self.model, "response_format": "verbose_json"}
        answer = self._client.post_file("/v1/audio/transcriptions", fields, "speech.wav", recording)
        return float(answer["duration"])
