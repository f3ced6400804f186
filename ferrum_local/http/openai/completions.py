"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import Blueprint, Response

from ferrum_local.http.bodies import read_json_body
from ferrum_local.http.openai.call import new_call
from ferrum_local.http.openai.chunks import CompletionChunks
from ferrum_local.http.openai.constraints import constraint_of
from ferrum_local.http.openai.generation import answer
from ferrum_local.http.openai.responses import completion
from ferrum_local.http.openai.sampling_fields import completion_sampling
from ferrum_local.http.openai.schemas import Completion, CompletionChunk, CompletionRequest
from ferrum_local.http.openai.validation import invalid, json_type, parse_request
from ferrum_local.http.openapi import documented
from ferrum_local.http.state import state
from ferrum_local.types import InfillPrompt, Prompt, TokenIds

MAX_PROMPTS = 128

blueprint = Blueprint("openai_completions", __name__)


@blueprint.post("/v1/completions")
@documented(
    summary="Continue a text",
    request=CompletionRequest,
    response=Completion,
    stream=CompletionChunk,
)
def create_completion() -> Response:
    fields = parse_request(read_json_body(), CompletionRequest)
    texts = prompts_of(fields)
    sampling = completion_sampling(
        fields, echo_needs_text=not all(isinstance(p, str) for p in texts)
    )
    prompts = texts if fields.suffix is None else infill_prompts(texts, fields.suffix)
    call = new_call(fields, id_prefix="cmpl", engine=state().engine, config=state().config)
    n = fields.n or 1
    echoed = prompts if fields.echo else None
    with_logprobs = fields.logprobs is not None
    return answer(
        call,
        call.requests(prompts, sampling, constraint=constraint_of(fields)),
        body=lambda responses, usage, timings: completion(
            call.envelope,
            responses,
            echoed=echoed,
            n=n,
            with_logprobs=with_logprobs,
            usage=usage,
            timings=timings,
        ),
        chunks=lambda: CompletionChunks(call, n=n, echoed=echoed, with_logprobs=with_logprobs),
    )


def prompts_of(fields: CompletionRequest) -> Sequence[Prompt]:
    """The prompts one by one, whichever of its four forms ``prompt`` has.

    :raises ApiError: 400 for mixed forms, an empty list of ids, or too many prompts.
    """
    prompt = fields.prompt
    if isinstance(prompt, str):
        return (prompt,)
    kind = type(prompt[0])
    for i, item in enumerate(prompt):
        if type(item) is not kind:
            raise invalid(
                f"prompt[{i}]", f"expected {json_type(prompt[0])} as before, got {json_type(item)}"
            )
    if kind is int:
        return (_token_ids(prompt, "prompt"),)
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"expected at most {MAX_PROMPTS} prompts, got {len(prompt)}")
    if kind is str:
        return tuple(p for p in prompt if isinstance(p, str))
    return tuple(_token_ids(ids, f"prompt[{i}]") for i, ids in enumerate(prompt))


def infill_prompts(texts: Sequence[Prompt], suffix: str) -> Sequence[Prompt]:
    """:raises ApiError: 400 for prompts of token ids, which have no place for a suffix."""
    prompts = []
    for text in texts:
        if not isinstance(text, str):
            raise invalid("suffix", "only possible with prompts that are texts")
        prompts.append(InfillPrompt(prefix=text, suffix=suffix))
    return prompts


def _token_ids(ids: Any, path: str) -> TokenIds:
    if not ids:
        raise invalid(path, "expected non-empty list of token ids, got an empty list")
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < 2**31:
            raise invalid(f"{path}[{i}]", f"expected a token id, got {token_id}")
    return tuple(ids)
