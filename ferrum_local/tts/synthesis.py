"""One text → the parts that are spoken one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import msgspec
import numpy as np

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import SpeechRequest, SpokenPart
from ferrum_local.errors import InvalidRequest
from ferrum_local.tts.abbreviations import spell_out
from ferrum_local.tts.clause_feed import ClauseFeed
from ferrum_local.tts.clauses import paragraphs, parts, sentences
from ferrum_local.tts.markup import strip_markup
from ferrum_local.tts.scripts import can_say_any
from ferrum_local.tts.ssml import Piece, is_ssml, parse_ssml
from ferrum_local.tts.voice import Voice

PARAGRAPH_PAUSE_S = 0.25
_FADE_S = 0.004  # at both ends of a part, so that seams do not click


class Utterance(msgspec.Struct, frozen=True):
    """What one call of the voice speaks; or, with ``pause_s``, silence.

    ``written``: see :class:`SpokenPart`.
    """

    text: str = ""
    pause_s: float = 0.0
    written: str = ""


def plan(request: SpeechRequest, voice: Voice, *, max_chars: int) -> list[Utterance]:
    """Everything that will be heard, in order.

    :raises InvalidRequest: nothing in the text can be said, it is too long, or its SSML is wrong.
    """
    text = request.text
    if len(text) > max_chars:
        raise InvalidRequest(
            f"input: expected at most {max_chars} characters, got {len(text)}", param="input"
        )
    pieces: list[Piece] = parse_ssml(text) if is_ssml(text) else [text]
    if request.normalize:
        language = voice.language_family
        pieces = [_normalized(p, language) if isinstance(p, str) else p for p in pieces]
    spoken = " ".join(piece for piece in pieces if isinstance(piece, str))
    if not can_say_any(spoken, voice.language_family):
        raise InvalidRequest(
            f"input: there is nothing in it that the voice {request.model_id} "
            f"({voice.language}) can say",
            param="input",
        )
    return list(_utterances(pieces, early=request.early))


def plan_while_written(
    request: SpeechRequest, voice: Voice, texts: Iterable[str]
) -> Iterator[Utterance]:
    """What will be heard of a text that comes in pieces, in order and as early as possible.

    What the voice cannot say is left out; nobody could be told in time.
    """
    feed = ClauseFeed(early=request.early)
    written = ""  # not yet with an utterance
    is_first = True
    is_new_line = False
    blanks = ""  # that ended the piece before
    for piece in _cut_pieces(feed, texts):
        written += piece
        is_new_line |= "\n" in blanks + piece[: len(piece) - len(piece.lstrip())]
        blanks = piece[len(piece.rstrip()) :]
        spoken = _normalized(piece, voice.language_family) if request.normalize else piece
        if not can_say_any(spoken, voice.language_family):
            continue
        if is_new_line and not is_first:
            yield Utterance(pause_s=PARAGRAPH_PAUSE_S)
        for utterance in _utterances([spoken], early=False):
            yield msgspec.structs.replace(utterance, written=written)
            written = ""
        is_new_line = is_first = False


def _cut_pieces(feed: ClauseFeed, texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from feed.add(text)
    yield from feed.finish()


def speak(
    request: SpeechRequest,
    voice: Voice,
    utterances: Iterable[Utterance],
    *,
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    check: Callable[[], None] = lambda: None,
) -> Iterator[SpokenPart]:
    """Synthesise when asked for the next part, never ahead: a slow listener costs no memory.

    :param turn: held while one part is synthesised.
    :param check: called now and then meanwhile; what it raises ends the work.
    """
    speaker_id = voice.speaker_id(request.speaker)
    n_samples = 0
    written = ""
    for utterance in utterances:
        n_tokens = 0
        written += utterance.written
        if utterance.pause_s:
            n_pause = round(utterance.pause_s * voice.sample_rate_hz)
            samples = np.zeros(n_pause, np.float32)
        else:
            with turn():
                samples, n_tokens = voice.speak(
                    utterance.text, speaker_id=speaker_id, speed=request.speed,
                    volume=request.volume, check=check,
                )  # fmt: skip
            samples = _faded(samples, round(_FADE_S * voice.sample_rate_hz))
        if len(samples) == 0:
            continue  # marks without a sound
        start = n_samples
        n_samples += len(samples)
        yield SpokenPart(
            text=utterance.text,
            pcm=samples.astype("<f4", copy=False).tobytes(),
            start_s=start / voice.sample_rate_hz,
            end_s=n_samples / voice.sample_rate_hz,
            n_tokens=n_tokens,
            written=written,
        )
        written = ""


def _normalized(text: str, language: str) -> str:
    text = strip_markup(text)
    return spell_out(text) if language == "en" else text


def _utterances(pieces: list[Piece], *, early: bool) -> Iterator[Utterance]:
    is_first = True
    for piece in pieces:
        if isinstance(piece, float):
            if piece > 0:
                yield Utterance(pause_s=piece)
            continue
        for i, paragraph in enumerate(paragraphs(piece)):
            if i and not is_first:
                yield Utterance(pause_s=PARAGRAPH_PAUSE_S)
            for sentence in sentences(paragraph):
                if not any(c.isalnum() for c in sentence):
                    continue
                for part in parts(sentence, early=early and is_first):
                    yield Utterance(text=part)
                is_first = False


def _faded(samples: Samples, n_fade: int) -> Samples:
    n_fade = min(n_fade, len(samples) // 2)
    if n_fade == 0:
        return samples
    ramp = np.linspace(0.0, 1.0, n_fade, dtype=np.float32)
    samples = samples.copy()
    samples[:n_fade] *= ramp
    samples[-n_fade:] *= ramp[::-1]
    return samples
