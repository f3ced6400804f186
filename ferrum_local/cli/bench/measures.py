"""What is asked of a model, and the numbers that come of it. Each takes a few seconds at most."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import msgspec

from ferrum_local.cli.bench.targets import Target

BUDGET_S = 3.0  # of one measurement, as far as it can be foreseen
_WORDS = "river stone cloud winter garden lantern bridge harbour meadow copper".split()
_SPOKEN = (
    "The harbour is quiet in winter. Boats lie on the stones, and lanterns hang from the bridge. "
    "When the ice breaks, the whole town comes to watch the first ship leave."
)
_WAV_HEADER_BYTES = 44


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """``value`` None: it was not measured, and ``note`` says why."""

    what: str
    model: str
    value: float | None
    unit: str
    note: str | None = None


def measure_chat(target: Target) -> list[Measurement]:
    """Prefill and decode in tokens per second, and the time to the first token of a short
    question."""
    probe = target.chat(_text(60, salt="probe"), 8)  # warms up, and says how much there is time for
    n_words = _fitting(probe.prompt_per_s, least=60, most=400)
    n_tokens = _fitting(probe.generated_per_s, least=8, most=128)
    prefill = target.chat(_text(n_words, salt="prefill"), 1)
    decode = target.chat(f"{time.monotonic_ns()}: write a long story.", n_tokens)
    first = target.chat(f"{time.monotonic_ns()}: how are you?", 1)
    return [
        Measurement(what="prefill", model=target.model, value=prefill.prompt_per_s, unit="tok/s",
                    note=f"{prefill.n_prompt} tokens"),
        Measurement(what="decode", model=target.model, value=decode.generated_per_s, unit="tok/s",
                    note=f"{decode.n_generated} tokens, one stream"),
        Measurement(what="time to first token", model=target.model, value=first.ttft_s * 1000,
                    unit="ms", note="a short question"),
    ]  # fmt: skip


def measure_embedding(target: Target) -> list[Measurement]:
    sentences = [_text(12, salt=str(i)) for i in range(256)]
    took_s = _timed(lambda: target.embed(sentences[:8]))
    took_s = _timed(lambda: target.embed(sentences[:8]))  # the first one also warms up
    n = _fitting(8 / max(took_s, 1e-6), least=8, most=len(sentences))
    took_s = _timed(lambda: target.embed(sentences[:n]))
    return [
        Measurement(what="embeddings", model=target.model, value=n / took_s, unit="texts/s",
                    note=f"{n} sentences in one request")
    ]  # fmt: skip


def measure_speech(target: Target) -> tuple[list[Measurement], bytes]:
    """:returns: also what was spoken, as WAV."""
    target.speak("Ready.")
    started_s = time.monotonic()
    recording = target.speak(_SPOKEN)
    took_s = time.monotonic() - started_s
    duration_s = wav_duration_s(recording)
    measurement = Measurement(what="speech", model=target.model, value=took_s / duration_s,
                              unit="RTF", note=f"{duration_s:.0f} s of sound")  # fmt: skip
    return [measurement], recording


def measure_transcription(target: Target, recording: bytes) -> list[Measurement]:
    """:param recording: speech, as a file's bytes."""
    started_s = time.monotonic()
    duration_s = target.transcribe(recording)
    took_s = time.monotonic() - started_s
    return [
        Measurement(what="transcription", model=target.model, value=took_s / duration_s,
                    unit="RTF", note=f"{duration_s:.0f} s of sound")
    ]  # fmt: skip


def wav_duration_s(data: bytes) -> float:
    """Of mono 16-bit samples behind a plain header; streams leave its lengths open."""
    (rate_hz,) = struct.unpack_from("<I", data, 24)
    return (len(data) - _WAV_HEADER_BYTES) / 2 / float(rate_hz)


def _fitting(per_s: float, *, least: int, most: int) -> int:
    """How many take about the budget."""
    return max(least, min(most, int(per_s * BUDGET_S)))


def _text(n_words: int, *, salt: str) -> str:
    """Words that no prompt cache has seen."""
    words = (_WORDS[(i * i + len(salt)) % len(_WORDS)] for i in range(n_words))
    return f"{salt} {time.monotonic_ns()} {' '.join(words)}"


def _timed(work: Callable[[], None]) -> float:
    started_s = time.monotonic()
    work()
    return time.monotonic() - started_s
