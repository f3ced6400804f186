"""An answer that is spoken while it is still being written.

One thread reads the text, another has it spoken; the caller gets both as they come.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from ferrum_local.audio_types import SpeechRequest
from ferrum_local.engine.channel import Channel
from ferrum_local.engine.contracts import Engine
from ferrum_local.types import Priority

T = TypeVar("T")

MAX_PARTS = 16  # that wait for the caller; one of audio is a sentence, about 0.5 MB
TEXT_THREAD, SPEECH_THREAD = "answer-text", "answer-speech"
MAX_TEXTS = 4096  # that wait to be spoken: writing may be far ahead of speech


class AnswerText(msgspec.Struct, frozen=True):
    """A piece of text, as it was written."""

    text: str


class AnswerAudio(msgspec.Struct, frozen=True):
    """A clause, a sentence or a pause, as it is heard: mono, float32.

    ``text`` is what of the written text it speaks. Joined, these are the text up to an end that
    has no sound: what a listener has heard of it, and no more.
    """

    samples: npt.NDArray[np.float32]
    sample_rate_hz: int
    text: str


class SpokenAnswer:
    """One answer. Use it as a context manager; leaving early ends writing and speaking.

    :param voice: id, alias or one of the names for voices; None: the first.
    :param metadata: of the speech request, see :meth:`Engine.cancel`.
    :raises FerrumError: what can be refused is refused now: no such voice, none loaded, a full
        queue, a server that is stopping.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        voice: str | None = None,
        speed: float = 1.0,
        request_id: str | None = None,
        priority: Priority = Priority.INTERACTIVE,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self._texts: Channel[str] = Channel(MAX_TEXTS)
        self._closed = threading.Event()
        self._stop_text: Callable[[], None] | None = None
        self._close_parts: Callable[[], None] = lambda: None
        request = SpeechRequest(
            id=request_id or f"speech-{secrets.token_hex(16)}",
            model_id=voice or "",
            text="",
            speed=speed,
            early=True,
            priority=priority,
            metadata=metadata or {},
        )
        self._speech = engine.speak_while_written(request, self._texts)
        self.sample_rate_hz = self._speech.sample_rate_hz

    def parts(
        self, pieces: Iterable[str | T], *, stop_text: Callable[[], None] | None = None
    ) -> Iterator[AnswerText | AnswerAudio | T]:
        """Yield each piece of text at once, and its audio as soon as a clause is complete.

        :param pieces: the text; read on a thread of its own, may block. What is no string comes
            out as it is, in its place between the texts.
        :param stop_text: makes ``pieces`` end, from any thread; ``close`` calls it.
        :raises Exception: what ``pieces`` raised; or FerrumError: the voice failed, or was
            cancelled by the engine. After ``close`` it just ends.
        """
        parts: Channel[AnswerText | AnswerAudio | T] = Channel(MAX_PARTS)
        self._stop_text, self._close_parts = stop_text, parts.close
        try:
            if self._closed.is_set():
                return
            for thread in (
                threading.Thread(target=self._read, args=(parts, pieces), name=TEXT_THREAD),
                threading.Thread(target=self._speak, args=(parts,), name=SPEECH_THREAD),
            ):
                thread.daemon = True  # a voice in the middle of a clause holds up no exit
                thread.start()
            yield from parts
        finally:
            self.close()

    def close(self) -> None:
        """End writing and speaking; nothing is yielded any more. From any thread, also twice.

        A clause that the voice is at is finished in the background.
        """
        self._closed.set()
        self._close_parts()
        self._texts.close()
        self._speech.close()
        if self._stop_text is not None:
            self._stop_text()

    def __enter__(self) -> SpokenAnswer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _read(
        self, parts: Channel[AnswerText | AnswerAudio | T], pieces: Iterable[str | T]
    ) -> None:
        try:
            for piece in pieces:
                if not isinstance(piece, str):
                    if not parts.put(piece):
                        return
                elif piece and not (parts.put(AnswerText(piece)) and self._texts.put(piece)):
                    return
        except Exception as error:  # the caller's thread raises it
            parts.end(error)
            self._texts.close()
            self._speech.close()
        else:
            self._texts.end()

    def _speak(self, parts: Channel[AnswerText | AnswerAudio | T]) -> None:
        try:
            for part in self._speech:
                samples = np.frombuffer(part.pcm, "<f4")
                if not parts.put(AnswerAudio(samples, self.sample_rate_hz, part.written)):
                    return
        except Exception as error:  # the caller's thread raises it
            parts.end(error)
        else:
            parts.end()
        finally:
            self._speech.close()
