"""The engine's chunks → the events of the two routes' streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import msgspec.structs
from msgspec import UNSET, UnsetType

from ferrum_local.engine.contracts import InferenceStream
from ferrum_local.http.openai.call import Call
from ferrum_local.http.openai.logprobs import LegacyLogprobs, chat_logprobs, joined
from ferrum_local.http.openai.responses import echo_text, finish_reason_name
from ferrum_local.http.openai.schemas import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    FunctionDelta,
    SpokenAudioDelta,
    TimingsBody,
    ToolCallChunk,
    UsageBody,
)
from ferrum_local.http.openai.tools import ToolOptions
from ferrum_local.types import FinishReason, Prompt, StreamChunk, TokenLogprob, ToolCallDelta

OptionalTimings: TypeAlias = TimingsBody | UnsetType

_ROLE = ChatDelta(role="assistant", content="")
_ROLE_WITHOUT_CONTENT = ChatDelta(role="assistant", content=None)
_NOTHING = ChatDelta()


def _common(call: Call, usage: UsageBody | None, timings: OptionalTimings) -> dict[str, Any]:
    """The fields of every chunk but its choices."""
    return {
        **msgspec.structs.asdict(call.envelope),
        "usage": usage if call.include_usage else UNSET,
        "timings": timings,
    }


class ChunkWriter(Protocol):
    """Shapes one stream. ``i`` is the prompt's place; a text-less chunk yields nothing."""

    def opening(self) -> Iterator[msgspec.Struct]: ...

    def content(
        self, i: int, chunk: StreamChunk, source: InferenceStream
    ) -> Iterator[msgspec.Struct]: ...

    def finish(
        self, i: int, index: int, reason: FinishReason, timings: OptionalTimings = UNSET
    ) -> msgspec.Struct: ...

    def usage(self, usage: UsageBody, timings: TimingsBody) -> msgspec.Struct: ...


class ChatChunks:
    """``chat.completion.chunk`` events: role, content, finish and perhaps usage.

    :param spoken: text is told by ``audio``, not as content.
    """

    def __init__(
        self,
        call: Call,
        *,
        n: int,
        with_logprobs: bool,
        tools: ToolOptions,
        spoken: bool = False,
    ) -> None:
        self._call = call
        self._spoken = spoken
        self._n = n
        self._with_logprobs = with_logprobs
        self._may_call = bool(tools.tools) and tools.tool_choice != "none"
        self._legacy_calls = tools.is_legacy
        self._held: defaultdict[int, list[TokenLogprob]] = defaultdict(list)
        self._spoke: set[int] = set()  # choices with content or calls

    def opening(self) -> Iterator[msgspec.Struct]:
        # An answer that is calls alone has null as content, as without a stream.
        role = _ROLE_WITHOUT_CONTENT if self._may_call or self._spoken else _ROLE
        for index in range(self._n):
            yield self._chunk(ChatChunkChoice(index=index, delta=role))

    def content(
        self, i: int, chunk: StreamChunk, source: InferenceStream
    ) -> Iterator[msgspec.Struct]:
        # Tokens without text of their own (half a character at the very end) have no
        # content event; their entries leave with the choice's next one.
        self._held[chunk.index].extend(chunk.logprobs)
        if chunk.reasoning:
            yield self._delta(chunk.index, ChatDelta(reasoning_content=chunk.reasoning))
        if chunk.text and not self._spoken:
            yield self._chunk(
                ChatChunkChoice(
                    index=chunk.index,
                    delta=ChatDelta(content=chunk.text),
                    logprobs=chat_logprobs(self._held.pop(chunk.index, ()))
                    if self._with_logprobs
                    else None,
                )
            )
        for call in chunk.tool_calls:
            yield self._delta(chunk.index, self._call_delta(call))
        if chunk.text or chunk.tool_calls:
            self._spoke.add(chunk.index)
        elif chunk.finish_reason and self._may_call and chunk.index not in self._spoke:
            yield self._delta(chunk.index, ChatDelta(content=""))

    def audio(self, audio: SpokenAudioDelta) -> msgspec.Struct:
        """Of the only choice."""
        return self._delta(0, ChatDelta(audio=audio))

    def _delta(self, index: int, delta: ChatDelta) -> msgspec.Struct:
        return self._chunk(ChatChunkChoice(index=index, delta=delta))

    def _call_delta(self, call: ToolCallDelta) -> ChatDelta:
        name = UNSET if call.name is None else call.name
        function = FunctionDelta(name=name, arguments=call.arguments)
        if self._legacy_calls:
            return ChatDelta(function_call=function)
        is_first = call.id is not None
        return ChatDelta(
            tool_calls=[
                ToolCallChunk(
                    index=call.index,
                    id=UNSET if call.id is None else call.id,
                    type="function" if is_first else UNSET,
                    function=function,
                )
            ]
        )

    def finish(
        self, i: int, index: int, reason: FinishReason, timings: OptionalTimings = UNSET
    ) -> msgspec.Struct:
        held = self._held.pop(index, ())
        return self._chunk(
            ChatChunkChoice(
                index=index,
                delta=_NOTHING,
                logprobs=chat_logprobs(held) if held and self._with_logprobs else None,
                finish_reason=finish_reason_name(reason, legacy_calls=self._legacy_calls),
            ),
            timings=timings,
        )

    def usage(self, usage: UsageBody, timings: TimingsBody) -> msgspec.Struct:
        return self._chunk(usage=usage, timings=timings)

    def _chunk(
        self,
        *choices: ChatChunkChoice,
        usage: UsageBody | None = None,
        timings: OptionalTimings = UNSET,
    ) -> ChatChunk:
        return ChatChunk(choices=list(choices), **_common(self._call, usage, timings))


class CompletionChunks:
    """``text_completion`` events. An echoed prompt is a choice's first text."""

    def __init__(
        self, call: Call, *, n: int, echoed: Sequence[Prompt] | None, with_logprobs: bool
    ) -> None:
        self._call = call
        self._n = n
        self._echoed = echoed
        self._logprobs: defaultdict[int, LegacyLogprobs] | None = (
            defaultdict(LegacyLogprobs) if with_logprobs else None
        )
        self._held: dict[int, CompletionLogprobs] = {}
        self._begun: set[int] = set()

    def opening(self) -> Iterator[msgspec.Struct]:
        return iter(())

    def content(
        self, i: int, chunk: StreamChunk, source: InferenceStream
    ) -> Iterator[msgspec.Struct]:
        index = i * self._n + chunk.index
        if self._echoed is not None and index not in self._begun:
            self._begun.add(index)
            text = echo_text(self._echoed[i], source)
            logprobs = None
            if self._logprobs is not None:
                logprobs = self._logprobs[index].prompt(source.prompt_logprobs, text)
            if text or logprobs is not None:
                yield self._chunk(CompletionChunkChoice(index=index, text=text, logprobs=logprobs))
        if self._logprobs is not None and chunk.logprobs:
            added = self._logprobs[index].add(chunk.logprobs)
            held = self._held.get(index)
            self._held[index] = joined(held, added) if held else added
        if chunk.text:
            yield self._chunk(
                CompletionChunkChoice(
                    index=index, text=chunk.text, logprobs=self._held.pop(index, None)
                )
            )

    def finish(
        self, i: int, index: int, reason: FinishReason, timings: OptionalTimings = UNSET
    ) -> msgspec.Struct:
        index += i * self._n
        return self._chunk(
            CompletionChunkChoice(
                index=index,
                text="",
                logprobs=self._held.pop(index, None),
                finish_reason=finish_reason_name(reason),
            ),
            timings=timings,
        )

    def usage(self, usage: UsageBody, timings: TimingsBody) -> msgspec.Struct:
        return self._chunk(usage=usage, timings=timings)

    def _chunk(
        self,
        *choices: CompletionChunkChoice,
        usage: UsageBody | None = None,
        timings: OptionalTimings = UNSET,
    ) -> CompletionChunk:
        return CompletionChunk(choices=list(choices), **_common(self._call, usage, timings))
