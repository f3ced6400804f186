"""Measures transcription and speech through HTTP beside the raw libraries, in one run.

The same models, settings and threads on both sides, measured in turns; prints a Markdown table.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import statistics
import sys
import time
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from bench.report import Row, Target, table
from bench.servers import serving

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
WHISPER = MODELS / "whisper-tiny.en"
VOICE = MODELS / "voices" / "en_US-joe-medium.onnx"
# Nothing here comes from ferrum_local: importing it settles how OpenMP's threads wait, and the raw
# library is measured as it comes.
WHISPER_RATE_HZ = 16_000
BOUNDARY = "bench-speech"
SENTENCES = (
    "The birch canoe slid on the smooth planks. ", "Rice is often served in round bowls. ",
    "The juice of lemons makes fine punch. ", "The box was thrown beside the parked truck. ",
    "A pot of tea helps to pass the evening, when the wind blows from the sea. ",
    "The source of the huge river is the clear spring. ", "Help the woman get back to her feet. ",
    "The soft cushion broke the man's fall, and nobody was hurt at all. ",
)  # fmt: skip
PARAGRAPH = (
    "When the sun went down behind the hills, the people of the village came out of their houses "
    "and sat by the river. They talked about the harvest, the weather and the price of bread. The "
    "children ran along the bank, and an old man played the fiddle, until the moon was high and it "
    "was time to go to bed."
)
FIRST_CLAUSE = "When the sun went down behind the hills,"


class Client:
    """One server, asked over plain HTTP. Times are seconds."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc

    def transcribe(self, recording: bytes) -> str:
        head = 'Content-Disposition: form-data; name="file"; filename="a.wav"'
        body = f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + recording
        body += f"\r\n--{BOUNDARY}--\r\n".encode()
        _, data = self._post(
            "/v1/audio/transcriptions", body, f"multipart/form-data; boundary={BOUNDARY}"
        )
        return str(json.loads(data)["text"])

    def speak(self, text: str, **fields: object) -> tuple[float, bytes]:
        """The time to the first byte, and all of them."""
        body = json.dumps({"input": text, **fields}).encode()
        return self._post("/v1/audio/speech", body, "application/json")

    def _post(self, path: str, body: bytes, media_type: str) -> tuple[float, bytes]:
        connection = http.client.HTTPConnection(self._netloc, timeout=3600)
        try:
            began_s = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": media_type})
            response = connection.getresponse()
            first = response.read(1)
            first_s = time.perf_counter() - began_s
            data = first + response.read()
            if response.status != 200:
                raise SystemExit(f"bench_speech: {path}: {response.status}: {data[:300]!r}")
            return first_s, data
        finally:
            connection.close()


class Raw:
    """faster-whisper and Piper without a server."""

    def __init__(self, threads: int) -> None:
        import onnxruntime
        from faster_whisper import BatchedInferencePipeline, WhisperModel
        from piper import PiperConfig, PiperVoice

        self._whisper = WhisperModel(
            str(WHISPER), device="cpu", compute_type="int8", cpu_threads=threads
        )
        self._batched = BatchedInferencePipeline(self._whisper)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            str(VOICE), sess_options=options, providers=["CPUExecutionProvider"]
        )
        config = json.loads(Path(f"{VOICE}.json").read_text("utf-8"))
        self._voice = PiperVoice(session=session, config=PiperConfig.from_dict(config))

    def batched(self, recording: bytes) -> str:
        """As we transcribe what is long."""
        return self._heard(
            self._batched, recording, vad_filter=True, batch_size=8, without_timestamps=False
        )

    def windows(self, recording: bytes) -> str:
        """As we transcribe what is short: one window at a time."""
        return self._heard(
            self._whisper, recording, vad_filter=True, condition_on_previous_text=False
        )

    def windows_by_default(self, recording: bytes) -> str:
        """As the library does when it is told nothing: no VAD, each window told of the last."""
        return self._heard(self._whisper, recording)

    @staticmethod
    def _heard(model: Any, recording: bytes, **settings: Any) -> str:
        segments, _ = model.transcribe(io.BytesIO(recording), language="en", **settings)
        return "".join(segment.text for segment in segments)

    def speak(self, text: str) -> bytes:
        return b"".join(chunk.audio_int16_bytes for chunk in self._voice.synthesize(text))

    def recording(self, seconds: float) -> bytes:
        """Speech of that length, as WAV."""
        rate_hz = self._voice.config.sample_rate
        pcm = b""
        i = 0
        while len(pcm) < seconds * rate_hz * 2:
            pcm += self.speak(SENTENCES[i % len(SENTENCES)]) + bytes(2 * (rate_hz // 2))
            i += 1
        return wav(pcm[: int(seconds * rate_hz) * 2], rate_hz)


def repeated(recording: Path, seconds: float) -> tuple[bytes, int]:
    """The recording over and over for about ``seconds``, as WAV, and how many times."""
    from faster_whisper import decode_audio

    samples = np.asarray(decode_audio(str(recording), sampling_rate=WHISPER_RATE_HZ))
    n_times = max(1, round(seconds * WHISPER_RATE_HZ / samples.size))
    pcm = (np.tile(samples, n_times) * 32767).astype("<i2").tobytes()
    return wav(pcm, WHISPER_RATE_HZ), n_times


def wav(pcm: bytes, rate_hz: int) -> bytes:
    """16-bit mono samples with a header."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate_hz, 0, "NONE", ""))
        out.writeframes(pcm)
    return file.getvalue()


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def in_turns(
    repeats: int, ours: Callable[[], float], other: Callable[[], float]
) -> tuple[float, float]:
    """Medians, measured ours, other, ours, other: a machine's speed drifts."""
    pairs = [(ours(), other()) for _ in range(repeats)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def ratio_row(measure: str, against: str, pair: tuple[float, float], limit: float) -> Row:
    ours, other = pair
    return Row(measure, "s", ours, against, other, ours / other, Target("≤", limit))


def gain_row(
    measure: str, against: str, pair: tuple[float, float], limit: float | None = None
) -> Row:
    """How many times faster ours is."""
    ours, other = pair
    target = Target("≥", limit) if limit is not None else None
    return Row(measure, "s", ours, against, other, other / ours, target)


def measure_real(client: Client, raw: Raw, recording: Path, *, seconds: float) -> Row:
    """A real recording, repeated, beside the library as it comes.

    :raises SystemExit: ours did not hear all of it.
    """
    data, n_times = repeated(recording, seconds)
    heard: list[str] = []
    pair = (
        timed(lambda: heard.append(client.transcribe(data))),
        timed(lambda: heard.append(raw.windows_by_default(data))),
    )
    n_spoken = n_times * len(raw.windows(recording.read_bytes()).split())
    ours, other = (len(text.split()) for text in heard)
    print(f"{recording.stem}: {n_spoken} words said, {ours} heard, faster-whisper {other}")
    if abs(ours - n_spoken) > 0.02 * n_spoken:
        raise SystemExit("bench_speech: words are missing or invented")
    what = f"{recording.stem}, {n_times} times, {seconds:g} s"
    return gain_row(what, "one window at a time, by default", pair, 8)


def measure(client: Client, raw: Raw, *, repeats: int, long_s: float) -> list[Row]:
    short, long = raw.recording(11.0), raw.recording(long_s)
    for warm in (lambda: client.transcribe(short), lambda: raw.windows(short),
                 lambda: client.speak(FIRST_CLAUSE), lambda: raw.speak(FIRST_CLAUSE)):  # fmt: skip
        warm()

    def transcribed(data: bytes) -> float:
        return timed(lambda: client.transcribe(data))

    def first_byte() -> float:
        return client.speak(PARAGRAPH, response_format="wav", stream=True)[0]

    def spoken(format_: str) -> float:
        return timed(lambda: client.speak(PARAGRAPH, response_format=format_))

    def raw_spoken() -> float:
        return timed(lambda: raw.speak(PARAGRAPH))

    return [
        ratio_row("transcription, 11 s", "faster-whisper", in_turns(
            repeats, lambda: transcribed(short), lambda: timed(
                lambda: raw.windows(short))), 1.05),
        ratio_row(f"transcription, {long_s:g} s", "faster-whisper, batched", in_turns(
            1, lambda: transcribed(long), lambda: timed(
                lambda: raw.batched(long))), 1.05),
        gain_row(f"transcription, {long_s:g} s", "one window at a time", (
            transcribed(long), timed(lambda: raw.windows(long)))),
        ratio_row("first byte of a paragraph", "Piper, first clause", in_turns(
            repeats, first_byte, lambda: timed(lambda: raw.speak(FIRST_CLAUSE))), 1.3),
        ratio_row("speech, wav", "Piper", in_turns(
            repeats, lambda: spoken("wav"), raw_spoken), 1.05),
        ratio_row("speech, mp3", "Piper", in_turns(
            repeats, lambda: spoken("mp3"), raw_spoken), 1.15),
    ]  # fmt: skip


def measure_crowd(client: Client, recording: bytes, *, repeats: int) -> Row:
    """Four recordings at the same moment, with the threads that the server takes by itself."""
    client.transcribe(recording)

    def four_at_once() -> float:
        with ThreadPoolExecutor(4) as pool:
            return timed(lambda: list(pool.map(client.transcribe, [recording] * 4)))

    def four_in_a_row() -> float:
        return timed(lambda: [client.transcribe(recording) for _ in range(4)])

    pair = in_turns(repeats, four_at_once, four_in_a_row)
    return ratio_row("4 transcriptions at once, default threads", "4 in a row", pair, 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    n_cores = os.cpu_count() or 1
    parser.add_argument("--threads", type=int, default=n_cores, help="on both sides")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--long-s", type=float, default=600.0, help="length of the long recording")
    parser.add_argument(
        "--recording", type=Path, metavar="FILE",
        help="real speech, repeated for --long-s, heard beside the library's own defaults",
    )  # fmt: skip
    options = parser.parse_args()
    missing = [path for path in (WHISPER, VOICE) if not path.exists()]
    if missing:
        print(f"bench_speech: {missing[0]} is missing: run `make setup`", file=sys.stderr)
        return 1
    if options.recording and not options.recording.exists():
        parser.error(f"--recording {options.recording}: no such file")
    n_threads = str(options.threads)
    raw = Raw(options.threads)
    models = ("--whisper-model", str(WHISPER), "--voice", str(VOICE), "--models-dir", os.devnull)
    with serving(*models, "--stt-threads", n_threads, "--tts-threads", n_threads) as url:
        client = Client(url)
        rows = measure(client, raw, repeats=options.repeats, long_s=options.long_s)
        if options.recording:
            rows.append(measure_real(client, raw, options.recording, seconds=options.long_s))
    with serving(*models) as url:
        rows.append(measure_crowd(Client(url), raw.recording(11.0), repeats=options.repeats))
    print(f"{options.threads} threads, {n_cores} cores, {WHISPER.name}, {VOICE.stem}\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
