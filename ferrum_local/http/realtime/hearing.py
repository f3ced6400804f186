"""Transcripts of turns, made on a thread of their own while the turns go on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ferrum_local.audio.decode import Samples
from ferrum_local.engine.contracts import LiveTranscription
from ferrum_local.http.realtime.agreement import AgreedWords
from ferrum_local.http.realtime.input_audio import SAMPLES_PER_MS
from ferrum_local.http.realtime.items import Item

# A transcript that ends this long after the last voiced sample has heard all of it.
SETTLED_SAMPLES = 100 * SAMPLES_PER_MS


@dataclass(eq=False)
class Turn:
    """What one user says, from the first sample to the last word of the transcript.

    Positions are samples. ``heard_until``: as far as ``text`` goes. ``voiced_end``: after the last
    sound of speech; 0: none so far. ``item`` is set by the commit.
    """

    item_id: str
    start: int
    transcription: LiveTranscription
    agreed: AgreedWords = field(default_factory=AgreedWords)
    text: str = ""
    heard_until: int = 0
    voiced_end: int = 0
    is_being_heard: bool = False
    when_heard: Callable[[], None] | None = None  # what waits for that, once it was committed
    item: Item | None = None
    samples: Samples | None = None  # all of them, once it was committed

    @property
    def is_settled(self) -> bool:
        """Whether ``text`` has all that was said."""
        if not self.voiced_end:
            return True
        end = self.voiced_end + SETTLED_SAMPLES
        if self.samples is not None:
            end = min(end, self.start + len(self.samples))
        return self.heard_until >= end


class Ears:
    """One thread that writes down turns, in the order they were offered.

    :param post: has a function called on the session's thread.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="realtime-ears")

    def hear(
        self,
        turn: Turn,
        samples: Samples,
        end: int,
        *,
        urgent: bool,
        then: Callable[[Exception | None], None],
    ) -> None:
        """Have ``samples``, of the turn up to position ``end``, written down.

        :param then: called on the session's thread, after ``turn.text`` was brought up to date.
        """
        turn.is_being_heard = True

        def work() -> None:
            text: str | None = None
            failure: Exception | None = None
            try:
                text = turn.transcription.text(samples, urgent=urgent)
            except Exception as error:  # the session tells its client
                failure = error

            def deliver() -> None:
                turn.is_being_heard = False
                if text is not None:
                    turn.text, turn.heard_until = text, end
                then(failure)

            self._post(deliver)

        self._thread.submit(work)

    def close(self) -> None:
        """Take nothing more; what is being written down is finished in the background."""
        self._thread.shutdown(wait=False, cancel_futures=True)
