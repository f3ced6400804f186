"""Token ids of one sequence to text that can be sent, with the tokens it stands for.

Joins the detokenizer and the stop matcher, and keeps count of which tokens the
released text covers so that each chunk can carry its own tokens' log-probabilities.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ferrum_local.llm.detokenizer import CharSpan, Detokenizer
from ferrum_local.llm.stop_strings import StopMatcher, StopResult


class AssembledText(NamedTuple):
    """What one more token made ready.

    ``n_tokens`` is how many tokens, next in the order they were pushed, are done with
    this text (not a running total). ``stopped``: a stop string was found; this is the end.
    """

    text: str
    n_tokens: int
    stopped: bool


class TextAssembler:
    """Text of one sequence, chunk by chunk.

    A token is done with the chunk that releases the last character it has bytes in; a
    token without bytes is done with the next chunk that has text. At a stop, tokens that
    have at least one character before the cut, and tokens without bytes up to the cut,
    are done; the others, wholly within or after the stop string, never are. When
    generation ends in another way, every token is done.

    :param token_to_bytes: the raw bytes of a token; empty for one that prints nothing.
    :param stops: strings to end before; empty ones are ignored.
    """

    def __init__(self, token_to_bytes: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(token_to_bytes)
        self._matcher = StopMatcher(stops)
        self._waiting: deque[CharSpan] = deque()  # one for each token that is not done
        self._n_released = 0

    def push(self, token_id: int) -> AssembledText:
        """Take the next token; after a stop nothing is released any more."""
        text = self._detokenizer.feed(token_id)
        self._waiting.append(self._detokenizer.last_span)
        released = self._matcher.push(text)
        if released.stopped:
            return self._stop(released)
        self._n_released += len(released.text)
        n_tokens = 0
        if released.text:
            while self._waiting and self._waiting[0].end <= self._n_released:
                self._waiting.popleft()
                n_tokens += 1
        return AssembledText(released.text, n_tokens, False)

    def finish(self) -> AssembledText:
        """Release what is held, once, when generation ended.

        ``stopped`` is True when the text turns out to end at a stop string after all.
        """
        released = self._matcher.flush()
        if released.stopped:
            return self._stop(released)
        self._n_released += len(released.text)
        n_tokens = len(self._waiting)
        self._waiting.clear()
        return AssembledText(released.text, n_tokens, False)

    def _stop(self, released: StopResult) -> AssembledText:
        """Account for the text before the cut; the tokens of the rest are forgotten."""
        self._n_released += len(released.text)
        cut = self._n_released
        n_tokens = 0
        for span in self._waiting:
            if span.start >= cut and span.end > cut:
                break
            n_tokens += 1
        self._waiting.clear()
        return AssembledText(released.text, n_tokens, True)
