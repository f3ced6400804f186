"""How much a model is to think, and what becomes of it: request fields → engine's options."""

from __future__ import annotations

from ferrum_local.http.openai.schemas import ChatCompletionRequest
from ferrum_local.http.openai.validation import invalid
from ferrum_local.types import ReasoningOptions

UNLIMITED = -1


def reasoning_options(request: ChatCompletionRequest) -> ReasoningOptions:
    """:raises ApiError: 400 for two budgets that differ."""
    ours, theirs = request.reasoning_budget_tokens, request.thinking_budget_tokens
    if ours is not None and theirs is not None and ours != theirs:
        raise invalid(
            "thinking_budget_tokens",
            "the same as reasoning_budget_tokens, but with another value; send one of them",
        )
    budget = theirs if ours is None else ours
    return ReasoningOptions(
        separate=request.reasoning_format != "none",
        budget_tokens=None if budget == UNLIMITED else budget,
        effort=request.reasoning_effort,
    )
