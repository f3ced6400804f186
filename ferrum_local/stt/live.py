"""Writes down a turn of speech while it is spoken: the same beginning again and again, longer."""

from __future__ import annotations

from ferrum_local.audio.decode import Samples
from ferrum_local.audio_types import WHISPER_RATE_HZ, LiveTranscriptRequest
from ferrum_local.errors import Unsupported
from ferrum_local.stt.model import Whisper
from ferrum_local.stt.speech_chunks import quietest_cut
from ferrum_local.stt.transcriber import plain_prompt

MAX_WINDOW_S = 28.0  # decoded again with each call; Whisper's window is 30 s
_CUT_SEARCH_S = 12.0  # how far back the quietest moment is looked for, to part long speech


class LiveTranscript:
    """Of one turn. One thread at a time uses it.

    What is older than Whisper's window is cut at a quiet moment, and its words are final.
    """

    def __init__(self, model: Whisper, request: LiveTranscriptRequest) -> None:
        """:raises Unsupported: the model does not know the language."""
        if not model.is_multilingual and request.language not in (None, "en"):
            raise Unsupported(
                f"language: {request.model_id} knows English only, got {request.language!r}",
                param="language",
            )
        self._model = model.native
        self._request = request
        self._final: list[str] = []
        self._n_final = 0  # samples whose words are final
        self.language = request.language if model.is_multilingual else "en"

    def text(self, samples: Samples) -> str:
        """:param samples: of the whole turn as far as it goes: those of the last call, and more."""
        n_window = int(MAX_WINDOW_S * WHISPER_RATE_HZ)
        while len(samples) - self._n_final > n_window:
            end = self._n_final + n_window
            start = end - int(_CUT_SEARCH_S * WHISPER_RATE_HZ)
            cut = quietest_cut(samples, start, end)
            self._final.append(self._decoded(samples[self._n_final : cut]))
            self._n_final = cut
        rest = self._decoded(samples[self._n_final :])
        return " ".join(part for part in (*self._final, rest) if part)

    def _decoded(self, samples: Samples) -> str:
        if len(samples) == 0:
            return ""
        segments, info = self._model.transcribe(
            samples,
            language=self.language,
            initial_prompt=plain_prompt(self._request.prompt),
            temperature=0.0,
            beam_size=self._request.beam_size,
            without_timestamps=True,
            condition_on_previous_text=False,
            vad_filter=False,  # done already
        )
        text = "".join(segment.text for segment in segments).strip()
        if text:
            self.language = info.language
        return text
