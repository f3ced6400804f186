"""What runs in the child: load something native, have it do its least work, tell what was seen."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

from ferrum_local.cli.found_models import (
    CHAT,
    EMBEDDING,
    IMAGE_EMBEDDING,
    SPEECH,
    TRANSCRIPTION,
    FoundModel,
)
from ferrum_local.errors import FerrumError
from ferrum_local.types import ModelSpec

BUILD = "build"
_CTX_TOKENS = 512
_QUIET_PEAK = 1e-3  # of full scale; speech has 0.1 and more


def probe_build(_path: str) -> dict[str, Any]:
    """What llama.cpp was built for."""
    from ferrum_local.llm.devices import cpu_features, devices, gpu_devices, version

    return {
        "version": version(),
        "devices": [f"{name} ({text.strip()})" for name, text, _ in devices()],
        "gpus": list(gpu_devices()),
        "cpu_features": list(cpu_features()),
    }


def probe_chat(path: str) -> dict[str, Any]:
    """One token."""
    from ferrum_local.cli.quiet_engine import QuietEngine
    from ferrum_local.types import ChatPrompt, InferenceRequest, LlmOptions, SamplingParams

    started_s = time.monotonic()
    request = InferenceRequest(
        id="doctor",
        model_id="",
        prompt=ChatPrompt(messages=({"role": "user", "content": "Say yes."},)),
        sampling_params=SamplingParams(max_tokens=1, temperature=0.0),
    )
    options = LlmOptions(ctx_size=_CTX_TOKENS, slots=1)
    with QuietEngine([_model(CHAT, path)], options) as quiet:
        loaded_s = time.monotonic()
        answer = quiet.engine.infer(request)
    if not answer.usage.completion_tokens:
        raise FerrumError("it wrote no token")
    return _times(started_s, loaded_s)


def probe_embedding(path: str, kind: str = EMBEDDING) -> dict[str, Any]:
    """One vector, or one score of a model that ranks."""
    from ferrum_local.cli.quiet_engine import QuietEngine
    from ferrum_local.types import LlmOptions, RerankRequest

    started_s = time.monotonic()
    with QuietEngine([_model(kind, path)], LlmOptions(embedding_ctx_size=_CTX_TOKENS)) as quiet:
        loaded_s = time.monotonic()
        if "rerank" in quiet.engine.status().models[0].capabilities:
            request = RerankRequest(id="doctor", model_id="", query="yes", documents=("yes",))
            n_numbers = len(quiet.engine.rerank(request).scores)
        else:
            n_numbers = len(quiet.engine.embed_text("yes"))
    return {**_times(started_s, loaded_s), "n_numbers": n_numbers}


def probe_image_embedding(path: str) -> dict[str, Any]:
    return probe_embedding(path, IMAGE_EMBEDDING)


def probe_transcription(path: str) -> dict[str, Any]:
    """A second of silence, which the model itself has to listen to."""
    from ferrum_local.audio import wav
    from ferrum_local.audio_types import WHISPER_RATE_HZ, TranscriptionRequest
    from ferrum_local.cli.quiet_engine import QuietEngine

    started_s = time.monotonic()
    silence = bytes(2 * WHISPER_RATE_HZ)
    with QuietEngine([_model(TRANSCRIPTION, path)]) as quiet:
        loaded_s = time.monotonic()
        file = io.BytesIO(wav.header(WHISPER_RATE_HZ, len(silence)) + silence)
        list(
            quiet.engine.transcribe(
                TranscriptionRequest(id="doctor", model_id="", file=file, vad=None)
            )
        )
    return _times(started_s, loaded_s)


def probe_speech(path: str) -> dict[str, Any]:
    """One word, which must be heard: some builds of espeak-ng give no sound and no error."""
    from ferrum_local.audio_types import TtsOptions
    from ferrum_local.tts.voice import Voice

    started_s = time.monotonic()
    voice = Voice(path, TtsOptions())
    loaded_s = time.monotonic()
    samples, _ = voice.speak("Ready.")
    if not len(samples) or float(abs(samples).max()) < _QUIET_PEAK:
        raise FerrumError("no sound came out")
    return {**_times(started_s, loaded_s), "sound_s": len(samples) / voice.sample_rate_hz}


PROBES: dict[str, Callable[[str], dict[str, Any]]] = {
    BUILD: probe_build,
    CHAT: probe_chat,
    EMBEDDING: probe_embedding,
    IMAGE_EMBEDDING: probe_image_embedding,
    TRANSCRIPTION: probe_transcription,
    SPEECH: probe_speech,
}


def _model(kind: str, path: str) -> FoundModel:
    spec_kind = kind if kind in (EMBEDDING, IMAGE_EMBEDDING) else CHAT
    return FoundModel(kind, ModelSpec(id="probed", path=path, kind=spec_kind))


def _times(started_s: float, loaded_s: float) -> dict[str, float]:
    return {"load_s": loaded_s - started_s, "answer_s": time.monotonic() - loaded_s}


def run(probe: str, path: str) -> None:
    """Print the facts, or ``error``, as one JSON object."""
    try:
        facts = PROBES[probe](path)
    except FerrumError as error:
        facts = {"error": error.message}
    except ImportError as error:
        facts = {"error": f"cannot be imported: {error}"}
    print(json.dumps(facts))
