"""Live words that will not be taken back: those that two transcripts in a row agree on."""

from __future__ import annotations

import re

_WORD = re.compile(r"\s*\S+")


class AgreedWords:
    """Of one turn. Whisper changes its mind about the latest words, so these wait.

    The rule is LocalAgreement-2 of Macháček, Dabre and Bojar, "Turning Whisper into Real-Time
    Transcription System", 2023.
    """

    def __init__(self) -> None:
        self._last: list[str] = []
        self._sent = ""

    @property
    def sent(self) -> str:
        """All that was agreed on so far."""
        return self._sent

    def add(self, transcript: str) -> str:
        """What can be sent now, after what was sent before; often nothing."""
        words = _WORD.findall(transcript)
        n_agreed = 0
        for before, now in zip(self._last, words, strict=False):
            if before != now:
                break
            n_agreed += 1
        self._last = words
        return self._send("".join(words[:n_agreed]))

    def finish(self, transcript: str) -> str:
        """The rest of the final transcript; nothing if it contradicts what was sent."""
        return self._send(transcript)

    def _send(self, text: str) -> str:
        if not text.startswith(self._sent):
            return ""
        new, self._sent = text[len(self._sent) :], text
        return new
