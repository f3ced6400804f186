"""How likely each token of a transcript is, given the recording and the tokens before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ferrum_local.audio_types import TranscribedSegment
from ferrum_local.stt.speech_chunks import Chunk
from ferrum_local.types import TokenLogprob

if TYPE_CHECKING:
    from faster_whisper import WhisperModel
    from faster_whisper.tokenizer import Tokenizer

_FRAMES_PER_S = 100
_MAX_TOKENS = 400  # read at once; Whisper's text context is 448


def with_logprobs(
    model: WhisperModel,
    tokenizer: Tokenizer,
    chunk: Chunk,
    segments: Iterable[TranscribedSegment],
) -> Iterator[TranscribedSegment]:
    """The segments of ``chunk`` with their ``logprobs``.

    The chunk is encoded once more, for faster-whisper keeps of all tokens only their sum; then
    its text is read in one step, as the alignment of words does.
    """
    from faster_whisper.audio import pad_or_trim

    segments = list(segments)
    if not segments:
        return
    features = model.feature_extractor(chunk.samples)[..., :-1]
    encoded = model.encode(pad_or_trim(features))
    n_frames = min(features.shape[-1], math.ceil(chunk.duration_s * _FRAMES_PER_S))
    for part in _parts(segments, tokenizer.eot):
        tokens = [token for _, texts in part for token in texts]
        probabilities: list[float] = []
        if tokens:
            (result,) = model.model.align(encoded, tokenizer.sot_sequence, [tokens], n_frames)
            probabilities = result.text_token_probs
        for segment, texts in part:
            own, probabilities = probabilities[: len(texts)], probabilities[len(texts) :]
            yield msgspec.structs.replace(
                segment,
                logprobs=tuple(
                    TokenLogprob(token, _bytes_of(tokenizer, token), _log(probability))
                    for token, probability in zip(texts, own, strict=True)
                ),
            )


def _parts(
    segments: Sequence[TranscribedSegment], first_special: int
) -> Iterator[list[tuple[TranscribedSegment, list[int]]]]:
    """Neighbouring segments with their tokens of text, as many as may be read at once."""
    part: list[tuple[TranscribedSegment, list[int]]] = []
    n_tokens = 0
    for segment in segments:
        texts = [token for token in segment.tokens if token < first_special]
        if part and n_tokens + len(texts) > _MAX_TOKENS:
            yield part
            part, n_tokens = [], 0
        part.append((segment, texts))
        n_tokens += len(texts)
    yield part


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """Whisper's vocabulary is GPT-2's, which writes each byte as a printable character."""
    text: str = tokenizer.tokenizer.id_to_token(token)
    return bytes(_BYTE_BY_CHARACTER[character] for character in text)


def _byte_by_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes follow after 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_BY_CHARACTER = _byte_by_character()


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
