"""faster-whisper's batched pipeline, without the words that it loses at the end of a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from faster_whisper import BatchedInferencePipeline

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

_TIME_STEP_S = 0.02  # between two of Whisper's timestamp tokens
MIN_REST_S = 1.0  # less than this after a phrase is a breath
MIN_UNHEARD_S = 5.0  # that Whisper says nothing of, in a chunk of nothing but speech


class WholeChunkPipeline(BatchedInferencePipeline):  # type: ignore[misc]
    """For chunks that end where speech pauses.

    Whisper may leave out the timestamp after a chunk's last phrase. Window by window that phrase
    is decoded again with the next window; the batched pipeline just drops it. Here it ends where
    its chunk ends.

    Whisper may also end a window early, and says so with two timestamps in a row: from there the
    next window goes on. One timestamp means that nothing follows; to ask nonetheless brings
    words that nobody said.

    :param durations_s: of the chunks of the one batch that is decoded.
    :ivar goes_on_s: for each chunk, from where it has to be decoded again; None: all is heard.
    """

    def __init__(self, model: WhisperModel, durations_s: Sequence[float]) -> None:
        super().__init__(model)
        self._durations_s = tuple(durations_s)
        self.goes_on_s: list[float | None] = []

    def generate_segment_batched(self, features: Any, tokenizer: Any, options: Any) -> Any:
        encoded, outputs = super().generate_segment_batched(features, tokenizer, options)
        for output, duration_s in zip(outputs, self._durations_s, strict=True):
            tokens = output["tokens"]
            self.goes_on_s.append(_goes_on_s(tokens, tokenizer.timestamp_begin, duration_s))
            if tokens and tokens[-1] < tokenizer.timestamp_begin:
                end = tokenizer.timestamp_begin + int(duration_s / _TIME_STEP_S)
                output["tokens"] = [*tokens, end]
        return encoded, outputs


def _goes_on_s(tokens: Sequence[int], first_time: int, duration_s: float) -> float | None:
    if len(tokens) < 2 or tokens[-1] < first_time:
        return None
    end_s = (tokens[-1] - first_time) * _TIME_STEP_S
    is_cut = tokens[-2] >= first_time
    if end_s > 0 and duration_s - end_s >= (MIN_REST_S if is_cut else MIN_UNHEARD_S):
        return end_s
    return None
