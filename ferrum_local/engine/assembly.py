"""Puts the chunks of a stream together to the answer of a request that does not stream."""

from __future__ import annotations

from collections.abc import Sequence

from ferrum_local.engine.contracts import InferenceStream
from ferrum_local.errors import GenerationFailed
from ferrum_local.types import (
    Choice,
    InferenceResponse,
    StreamChunk,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)


class ResponseAssembler:
    """Collects the chunks of one request.

    :param n: its number of choices.
    """

    def __init__(self, n: int) -> None:
        self._parts: list[list[StreamChunk]] = [[] for _ in range(n)]

    def add(self, chunk: StreamChunk) -> None:
        self._parts[chunk.index].append(chunk)

    def response(self, request_id: str, stream: InferenceStream) -> InferenceResponse:
        """The whole answer, once ``stream`` ended.

        :raises GenerationFailed: a choice has no end, which would pass a cut text as whole.
        """
        return InferenceResponse(
            id=request_id,
            model_id=stream.model_id,
            choices=tuple(_choice(i, parts) for i, parts in enumerate(self._parts)),
            usage=stream.usage,
            timings=stream.timings,
            prompt_token_ids=stream.prompt_token_ids,
            prompt_logprobs=stream.prompt_logprobs,
        )


def _choice(index: int, parts: Sequence[StreamChunk]) -> Choice:
    reason = parts[-1].finish_reason if parts else None
    if reason is None:
        raise GenerationFailed(f"Choice {index} ended without a reason.")
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    for part in parts:
        token_ids.extend(part.token_ids)
        logprobs.extend(part.logprobs)
    return Choice(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token_ids),
        finish_reason=reason,
        logprobs=tuple(logprobs),
        reasoning="".join(part.reasoning for part in parts),
        tool_calls=_tool_calls([delta for part in parts for delta in part.tool_calls]),
    )


def _tool_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    by_index: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCall(
            id=next(delta.id for delta in parts if delta.id is not None),
            name=next(delta.name for delta in parts if delta.name is not None),
            arguments="".join(delta.arguments for delta in parts),
        )
        for _, parts in sorted(by_index.items())
    )
