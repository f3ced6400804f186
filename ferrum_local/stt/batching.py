"""faster-whisper's batched pipeline, without the words that it loses at the end of a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from faster_whisper import BatchedInferencePipeline

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

_TIME_STEP_S = 0.02  # between two of Whisper's timestamp tokens


class WholeChunkPipeline(BatchedInferencePipeline):  # type: ignore[misc]
    """For chunks that end where speech pauses.

    Whisper may leave out the timestamp after a chunk's last phrase. Window by window that phrase
    is decoded again with the next window; the batched pipeline just drops it. Here it ends where
    its chunk ends.

    :param durations_s: of the chunks of the one batch that is decoded.
    """

    def __init__(self, model: WhisperModel, durations_s: Sequence[float]) -> None:
        super().__init__(model)
        self._durations_s = tuple(durations_s)

    def generate_segment_batched(self, features: Any, tokenizer: Any, options: Any) -> Any:
        encoded, outputs = super().generate_segment_batched(features, tokenizer, options)
        for output, duration_s in zip(outputs, self._durations_s, strict=True):
            tokens = output["tokens"]
            if tokens and tokens[-1] < tokenizer.timestamp_begin:
                end = tokenizer.timestamp_begin + int(duration_s / _TIME_STEP_S)
                output["tokens"] = [*tokens, end]
        return encoded, outputs
