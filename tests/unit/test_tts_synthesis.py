"""From a request to the parts that are heard, with a voice that says only ones."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from ferrum_local.audio_types import SpeechRequest, SpokenPart
from ferrum_local.errors import InvalidRequest
from ferrum_local.tts.synthesis import PARAGRAPH_PAUSE_S, plan, speak
from ferrum_local.tts.voice import MAX_PHONEMES, Voice, short_enough

RATE_HZ = 1000


class Ones:
    """A voice: a hundred samples of 1 for each letter, nothing for other characters."""

    sample_rate_hz = RATE_HZ
    language = "en-US"
    language_family = "en"

    def __init__(self) -> None:
        self.said: list[str] = []

    def speaker_id(self, name: str | None) -> int | None:
        return None if name is None else int(name)

    def speak(self, text: str, **_options: Any) -> tuple[np.ndarray[Any, Any], int]:
        self.said.append(text)
        return np.ones(100 * sum(c.isalpha() for c in text), np.float32), len(text)


def request(text: str, **fields: Any) -> SpeechRequest:
    return SpeechRequest(id="a", model_id="ones", text=text, **fields)


def heard(voice: Ones, asked: SpeechRequest) -> list[SpokenPart]:
    as_voice = cast(Voice, voice)
    return list(speak(asked, as_voice, plan(asked, as_voice, max_chars=1000)))


def samples(part: SpokenPart) -> np.ndarray[Any, Any]:
    return np.frombuffer(part.pcm, "<f4")


def test_parts_begin_and_end_in_silence_so_that_seams_do_not_click() -> None:
    for part in heard(Ones(), request("One, two three four five. Six!", early=True)):
        pcm = samples(part)
        assert pcm[0] == pcm[-1] == 0
        assert np.abs(np.diff(pcm)).max() < 0.5
        assert pcm[len(pcm) // 2] == 1


def test_parts_follow_each_other_in_time() -> None:
    parts = heard(Ones(), request("One. Two. Three."))
    assert [part.text for part in parts] == ["One.", "Two.", "Three."]
    assert [(p.start_s, p.end_s) for p in parts] == [(0, 0.3), (0.3, 0.6), (0.6, 1.1)]
    assert [p.n_tokens for p in parts] == [4, 4, 6]


def test_paragraphs_and_breaks_are_pauses() -> None:
    parts = heard(Ones(), request("Title\n\nText here."))
    assert [part.text for part in parts] == ["Title.", "", "Text here."]
    assert len(samples(parts[1])) == PARAGRAPH_PAUSE_S * RATE_HZ
    assert not samples(parts[1]).any()
    parts = heard(Ones(), request('<speak>a<break time="1s"/>b</speak>'))
    assert [part.end_s - part.start_s for part in parts] == pytest.approx([0.1, 1.0, 0.1])


def test_nothing_is_spoken_ahead_of_the_listener() -> None:
    voice = Ones()
    asked = request("One. Two. Three.")
    turns = []

    @contextmanager
    def turn() -> Any:
        turns.append("taken")
        yield

    parts = speak(
        asked, cast(Voice, voice), plan(asked, cast(Voice, voice), max_chars=99), turn=turn
    )
    assert voice.said == []
    next(parts)
    assert (voice.said, turns) == (["One."], ["taken"])


def test_the_first_clause_is_a_part_of_its_own_only_where_it_is_wanted_soon() -> None:
    text = "When the sun went down, they came. When it rose, they left."
    early = [part.text for part in heard(Ones(), request(text, early=True))]
    assert early == ["When the sun went down,", "they came.", "When it rose, they left."]
    assert len(heard(Ones(), request(text))) == 2


def test_tts_01_tts_06_what_cannot_be_said_or_is_too_long_is_refused_before() -> None:
    voice = Ones()
    for text, says in ((" \n", "nothing in it"), ("🙂 ...", "nothing in it"), ("a" * 1001, "1000")):
        with pytest.raises(InvalidRequest, match=says) as caught:
            heard(voice, request(text))
        assert caught.value.param == "input"
    assert voice.said == []


def test_marks_are_kept_when_they_are_asked_for() -> None:
    voice = Ones()
    heard(voice, request("**a** & b", normalize=False))
    heard(voice, request("**a** & b"))
    assert voice.said == ["**a** & b", "a and b"]


def test_a_long_sentence_is_spoken_in_pieces_that_bound_memory() -> None:
    word = ["w", "ʌ", "n", " "]
    pieces = short_enough(word * 500)
    assert [p for piece in pieces for p in piece] == word * 500
    assert all(len(piece) <= MAX_PHONEMES and piece[-1] == " " for piece in pieces)
    assert [len(piece) for piece in short_enough(["a"] * (MAX_PHONEMES + 1))] == [MAX_PHONEMES, 1]
    assert short_enough(word) == [word]
