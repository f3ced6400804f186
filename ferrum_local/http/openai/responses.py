"""The engine's answers → bodies of unstreamed replies, and the parts that streams share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec.structs
from msgspec import UNSET

from ferrum_local.errors import Cancelled
from ferrum_local.http.openai.call import Envelope
from ferrum_local.http.openai.logprobs import (
    LegacyLogprobs,
    chat_logprobs,
    joined,
    mean_logprob,
    prompt_text,
)
from ferrum_local.http.openai.schemas import (
    AnsweredToolCall,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    CompletionTokensDetails,
    PromptTokensDetails,
    ResponseMessage,
    SpokenAudio,
    TimingsBody,
    UsageBody,
)
from ferrum_local.http.openai.schemas.chat import FinishReasonName
from ferrum_local.http.request_context import RequestRecord
from ferrum_local.types import (
    Choice,
    FinishReason,
    InferenceResponse,
    Prompt,
    Timings,
    TokenLogprob,
    Usage,
)


class HasPromptLogprobs(Protocol):
    """An answer, or a stream that has begun."""

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]: ...


def chat_completion(
    envelope: Envelope,
    response: InferenceResponse,
    *,
    with_logprobs: bool,
    legacy_calls: bool = False,
    audio: SpokenAudio | None = None,
) -> ChatCompletion:
    """:param legacy_calls: answer with ``function_call``, the older form of ``tool_calls``.
    :param audio: of the only choice: its text is there, as transcript.
    """
    return ChatCompletion(
        **msgspec.structs.asdict(envelope),
        choices=[
            ChatChoice(
                index=choice.index,
                message=_message(choice, legacy_calls=legacy_calls, audio=audio),
                finish_reason=finish_reason_name(choice.finish_reason, legacy_calls=legacy_calls),
                logprobs=chat_logprobs(choice.logprobs) if with_logprobs else None,
            )
            for choice in response.choices
        ],
        usage=usage_body(response.usage, spoken=audio is not None),
        timings=timings_body(response.timings, response.usage),
    )


def _message(choice: Choice, *, legacy_calls: bool, audio: SpokenAudio | None) -> ResponseMessage:
    calls = [
        AnsweredToolCall(
            id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments)
        )
        for call in choice.tool_calls
    ]
    return ResponseMessage(
        content=(choice.text or (None if calls else "")) if audio is None else None,
        reasoning_content=choice.reasoning or UNSET,
        audio=UNSET if audio is None else audio,
        tool_calls=calls if calls and not legacy_calls else UNSET,
        function_call=calls[0].function if calls and legacy_calls else UNSET,
    )


def completion(
    envelope: Envelope,
    responses: Sequence[InferenceResponse],
    *,
    echoed: Sequence[Prompt] | None,
    n: int,
    with_logprobs: bool,
    usage: Usage,
    timings: Timings,
) -> Completion:
    """One body for all prompts: the choices of the first, then those of the second, and so on.

    :param echoed: the prompts, if their texts precede the answers.
    :param n: choices a prompt; of more, those with the highest mean log-probability are kept.
    """
    choices: list[CompletionChoice] = []
    for i, response in enumerate(responses):
        for choice in _best(response.choices, n):
            choices.append(
                _completion_choice(
                    len(choices),
                    response,
                    choice,
                    echo=None if echoed is None else echo_text(echoed[i], response),
                    with_logprobs=with_logprobs,
                )
            )
    return Completion(
        **msgspec.structs.asdict(envelope),
        choices=choices,
        usage=usage_body(usage),
        timings=timings_body(timings, usage),
    )


def _completion_choice(
    index: int,
    response: InferenceResponse,
    choice: Choice,
    *,
    echo: str | None,
    with_logprobs: bool,
) -> CompletionChoice:
    logprobs = None
    if with_logprobs:
        writer = LegacyLogprobs()
        if echo is None:
            logprobs = writer.add(choice.logprobs)
        else:
            of_prompt = writer.prompt(response.prompt_logprobs, echo)
            logprobs = joined(of_prompt, writer.add(choice.logprobs))
    return CompletionChoice(
        index=index,
        text=(echo or "") + choice.text,
        finish_reason=finish_reason_name(choice.finish_reason),
        logprobs=logprobs,
    )


def _best(choices: Sequence[Choice], n: int) -> Sequence[Choice]:
    if len(choices) <= n:
        return choices
    return sorted(choices, key=lambda c: mean_logprob(c.logprobs), reverse=True)[:n]


def echo_text(prompt: Prompt, source: HasPromptLogprobs) -> str:
    return prompt if isinstance(prompt, str) else prompt_text(source.prompt_logprobs)


def finish_reason_name(reason: FinishReason, *, legacy_calls: bool = False) -> FinishReasonName:
    """:raises Cancelled: that end is an error to a client, not a finish reason."""
    if reason is FinishReason.TOOL_CALLS:
        return "function_call" if legacy_calls else "tool_calls"
    if reason is FinishReason.STOP:
        return "stop"
    if reason is FinishReason.LENGTH:
        return "length"
    raise Cancelled("The request was cancelled.")


def usage_body(usage: Usage, *, spoken: bool = False) -> UsageBody:
    """:param spoken: say, too, that no token was audio: the model writes, a voice reads it out."""
    audio_tokens = 0 if spoken else UNSET
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=usage.cached_tokens, audio_tokens=audio_tokens
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=usage.reasoning_tokens, audio_tokens=audio_tokens
        ),
    )


def timings_body(timings: Timings, usage: Usage) -> TimingsBody:
    return TimingsBody(
        queue_ms=round(timings.queue_ms, 3),
        ttft_ms=None if timings.ttft_ms is None else round(timings.ttft_ms, 3),
        cache_n=usage.cached_tokens,
        prompt_n=timings.prompt_n,
        prompt_ms=round(timings.prompt_ms, 3),
        prompt_per_second=_per_second(timings.prompt_n, timings.prompt_ms),
        predicted_n=timings.predicted_n,
        predicted_ms=round(timings.predicted_ms, 3),
        predicted_per_second=_per_second(timings.predicted_n, timings.predicted_ms),
    )


def fill_record(record: RequestRecord, usage: Usage, timings: Timings) -> None:
    """What the access line tells of a generation."""
    record.prompt_tokens = usage.prompt_tokens
    record.cached_tokens = usage.cached_tokens
    record.generated_tokens = usage.completion_tokens
    record.queue_ms = timings.queue_ms
    record.ttft_ms = timings.ttft_ms
    record.tokens_per_s = _per_second(timings.predicted_n, timings.predicted_ms)


def _per_second(n_tokens: int, ms: float) -> float:
    return round(n_tokens * 1000 / ms, 2) if ms > 0 else 0.0
