"""One recording → segments: short ones window by window, long ones in batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ferrum_local.audio.decode import Samples, decode
from ferrum_local.audio_types import (
    WHISPER_RATE_HZ,
    SttOptions,
    TranscribedSegment,
    TranscribedWord,
    TranscriptionRequest,
    VadSettings,
)
from ferrum_local.errors import Unsupported
from ferrum_local.stt.model import Whisper
from ferrum_local.stt.speech_chunks import (
    CHUNK_S,
    WHISPER_WINDOW_S,
    Chunk,
    Span,
    speech_chunks,
    whole_chunks,
)

if TYPE_CHECKING:
    from faster_whisper.transcribe import Segment

BATCH_SIZE = 4  # chunks decoded together; 8 are no faster on two cores
# As OpenAI's own Whisper: where the words look wrong, a window is decoded again, less greedily.
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_MAX_COMPRESSION_RATIO = 2.4
_MIN_AVG_LOGPROB = -1.0
_NO_SPEECH_PROB = 0.6
# Special tokens in a prompt would end or turn the decoding.
_SPECIAL_TOKEN = re.compile(r"<\|[^|]{0,40}\|>")


class Transcription:
    """Writes down one recording; iterate ``segments`` once.

    ``language`` and ``duration_s`` are filled in on the way and final after the last segment.

    :param is_cancelled: asked between windows; True ends the segments early.
    """

    def __init__(
        self,
        model: Whisper,
        request: TranscriptionRequest,
        options: SttOptions,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """:raises Unsupported: the model cannot do what is asked."""
        check_request(model, request)
        self._model = model.native
        self._request = request
        self._options = options
        self._is_cancelled = is_cancelled
        self._n_samples = 0
        self.language = request.language
        if not model.is_multilingual:
            self.language = "en"

    @property
    def duration_s(self) -> float:
        """Of the recording, as far as it was read."""
        return self._n_samples / WHISPER_RATE_HZ

    def segments(self) -> Iterator[TranscribedSegment]:
        """:raises InvalidAudio: the file is no audio; AudioTooLong: longer than allowed."""
        vad = self._request.vad
        find_speech = whole_chunks if vad is None else partial(_find_speech, vad)
        chunks = speech_chunks(self._blocks(), find_speech, early=self._request.early)
        n_segments = 0
        heard_speech = False
        for batch in _batches(chunks, early=self._request.early):
            if self._is_cancelled():
                return
            if self.language is None:
                self.language = self._model.detect_language(audio=batch[0].samples)[0]
            for segment in self._decoded(batch, is_long=heard_speech or self._request.early):
                if self._is_cancelled():
                    return
                yield msgspec.structs.replace(segment, id=n_segments)
                n_segments += 1
            heard_speech = True
        if not heard_speech:
            self.language = self._request.language

    def _blocks(self) -> Iterator[Samples]:
        for block in decode(
            self._request.file,
            sample_rate_hz=WHISPER_RATE_HZ,
            max_duration_s=self._options.max_duration_s,
        ):
            if self._is_cancelled():
                return
            self._n_samples += len(block)
            yield block

    def _decoded(self, batch: list[Chunk], *, is_long: bool) -> Iterator[TranscribedSegment]:
        """:param is_long: one chunk is not all there is. A recording is decoded in one way, or
        its words would depend on how it fell into batches."""
        if (len(batch) == 1 and not is_long) or self._request.temperature > 0:
            for chunk in batch:
                yield from self._finished(chunk, self._one_by_one(chunk))
            return
        for chunk, segments in zip(batch, self._together(batch), strict=True):
            yield from self._finished(chunk, segments)

    def _finished(
        self, chunk: Chunk, segments: Iterable[TranscribedSegment]
    ) -> Iterable[TranscribedSegment]:
        """With what else was asked for."""
        if not self._request.logprobs:
            return segments
        from faster_whisper.tokenizer import Tokenizer

        from ferrum_local.stt.token_scores import with_logprobs

        tokenizer = Tokenizer(
            self._model.hf_tokenizer, self._model.model.is_multilingual, self._request.task,
            self.language,
        )  # fmt: skip
        return with_logprobs(self._model, tokenizer, chunk, segments)

    def _together(self, batch: list[Chunk]) -> list[list[TranscribedSegment]]:
        """The fast way: all chunks in one batch; for each chunk its segments.

        Where Whisper ended a chunk early it goes on, again with all such chunks together. What
        looks wrong is decoded carefully.
        """
        found: list[list[TranscribedSegment]] = [[] for _ in batch]
        left = list(enumerate(batch))
        while left and not self._is_cancelled():
            rests = []
            results = self._one_batch([chunk for _, chunk in left])
            for (i, chunk), (segments, goes_on_s) in zip(left, results, strict=True):
                if any(_looks_wrong(segment) for segment in segments):
                    found[i] += self._one_by_one(chunk)
                    continue
                found[i] += segments
                rest = chunk.after(goes_on_s) if goes_on_s is not None else None
                if rest is not None:
                    rests.append((i, rest))
            left = rests
        return found

    def _one_by_one(self, chunk: Chunk) -> Iterator[TranscribedSegment]:
        """The careful way: several temperatures, and silence is recognised."""
        wanted = self._request.temperature
        segments, _ = self._model.transcribe(
            chunk.samples,
            temperature=wanted if wanted > 0 else _TEMPERATURES,
            condition_on_previous_text=False,  # one wrong phrase would be repeated for minutes
            compression_ratio_threshold=_MAX_COMPRESSION_RATIO,
            log_prob_threshold=_MIN_AVG_LOGPROB,
            no_speech_threshold=_NO_SPEECH_PROB,
            vad_filter=False,  # done already
            **self._common(),
        )
        for segment in segments:
            yield _original(segment, chunk, 0.0)

    def _one_batch(self, batch: list[Chunk]) -> list[tuple[list[TranscribedSegment], float | None]]:
        """For each chunk its segments, and from where it has to be decoded again, if at all."""
        from ferrum_local.stt.batching import WholeChunkPipeline

        # Silence fills the windows up. faster-whisper would fill up the spectrogram with zeros,
        # which is a sound: Whisper then often takes the last phrase for one that goes on.
        audio = np.zeros((len(batch), int(WHISPER_WINDOW_S * WHISPER_RATE_HZ)), dtype=np.float32)
        for row, chunk in zip(audio, batch, strict=True):
            row[: len(chunk.samples)] = chunk.samples
        starts_s = np.arange(len(batch)) * WHISPER_WINDOW_S
        # A pipeline keeps the last word's time: one for each batch, not one for all threads.
        pipeline = WholeChunkPipeline(self._model, [chunk.duration_s for chunk in batch])
        segments, _ = pipeline.transcribe(
            audio.reshape(-1),
            temperature=0.0,
            without_timestamps=False,
            clip_timestamps=[
                {"start": float(start), "end": float(start + WHISPER_WINDOW_S)}
                for start in starts_s
            ],
            batch_size=BATCH_SIZE,
            **self._common(),
        )
        found: list[list[TranscribedSegment]] = [[] for _ in batch]
        for segment in segments:
            middle = (segment.start + segment.end) / 2
            i = min(int(middle / WHISPER_WINDOW_S), len(batch) - 1)
            if segment.start - starts_s[i] >= batch[i].duration_s:
                continue  # heard in the silence
            found[i].append(_original(segment, batch[i], float(starts_s[i])))
        return list(zip(found, pipeline.goes_on_s, strict=True))

    def _common(self) -> dict[str, Any]:
        """Arguments that both pipelines of faster-whisper take."""
        request = self._request
        return {
            "language": self.language,
            "task": request.task,
            "initial_prompt": plain_prompt(request.prompt),
            "hotwords": plain_prompt(request.hotwords),
            "word_timestamps": request.word_timestamps,
        }


def check_request(model: Whisper, request: TranscriptionRequest) -> None:
    """:raises Unsupported: an English-only model was asked for another language."""
    if model.is_multilingual:
        return
    if request.task == "translate":
        raise Unsupported(
            f"model: {request.model_id} knows English only and cannot translate; load a "
            "multilingual model with --whisper-model",
            param="model",
        )
    if request.language not in (None, "en"):
        raise Unsupported(
            f"language: {request.model_id} knows English only, got {request.language!r}; load a "
            "multilingual model with --whisper-model",
            param="language",
        )


def _find_speech(vad: VadSettings, audio: Samples) -> list[Span]:
    from faster_whisper.vad import VadOptions, get_speech_timestamps

    options = VadOptions(
        threshold=vad.threshold,
        max_speech_duration_s=CHUNK_S,
        min_silence_duration_ms=vad.silence_ms,
        speech_pad_ms=vad.padding_ms,
    )
    return [(s["start"], s["end"]) for s in get_speech_timestamps(audio, options)]


def _batches(chunks: Iterable[Chunk], *, early: bool) -> Iterator[list[Chunk]]:
    """Batches of full size; with ``early`` the first ones are smaller."""
    size = 1 if early else BATCH_SIZE
    batch: list[Chunk] = []
    for chunk in chunks:
        batch.append(chunk)
        if len(batch) == size:
            yield batch
            batch = []
            size = min(size * 2, BATCH_SIZE)
    if batch:
        yield batch


def _looks_wrong(segment: TranscribedSegment) -> bool:
    return (
        segment.compression_ratio > _MAX_COMPRESSION_RATIO or segment.avg_logprob < _MIN_AVG_LOGPROB
    )


def _original(segment: Segment, chunk: Chunk, start_s: float) -> TranscribedSegment:
    """With its times in the recording. ``start_s``: where the chunk begins in what was decoded."""

    def moment(time_s: float, *, is_end: bool = False) -> float:
        return round(chunk.original_s(time_s - start_s, is_end=is_end), 3)

    return TranscribedSegment(
        id=0,
        start=moment(segment.start),
        end=moment(segment.end, is_end=True),
        text=segment.text,
        tokens=tuple(segment.tokens),
        temperature=float(segment.temperature or 0.0),
        avg_logprob=float(segment.avg_logprob),
        compression_ratio=float(segment.compression_ratio),
        no_speech_prob=float(segment.no_speech_prob),
        words=tuple(
            TranscribedWord(
                word.word, moment(word.start), moment(word.end, is_end=True),
                float(word.probability),
            )
            for word in segment.words or ()
        ),
    )  # fmt: skip


def plain_prompt(text: str | None) -> str | None:
    """Without what would be special tokens; None for nothing."""
    return (_SPECIAL_TOKEN.sub(" ", text).strip() or None) if text else None
