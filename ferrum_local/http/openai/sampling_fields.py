"""The sampling, length and stop fields of a request → the engine's ``SamplingParams``.

Ranges of single fields are in the schemas; here are the rules between fields.
"""

from __future__ import annotations

from typing import Any

from ferrum_local.http.openai.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from ferrum_local.http.openai.schemas.common import INT32_MAX
from ferrum_local.http.openai.validation import invalid, shown, unsupported
from ferrum_local.types import SamplingParams

MAX_STOPS = 16
UNLIMITED = -1
RANDOM_SEED = -1
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's documented default on /v1/completions
MAX_DRY_BREAKERS = 64

# Passed on as they are, under the engine's own names, when the client gave them.
PLAIN_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "min_tokens",
    "n",
)


def chat_sampling(request: ChatCompletionRequest) -> SamplingParams:
    """:raises ApiError: 400 for values that do not go together or are not supported."""
    _refuse_unsupported(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "needs logprobs to be true")
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(request, name)
    if max_tokens == 0:
        raise invalid(name, "expected integer of at least 1, or -1 for no limit, got 0")
    return _sampling(
        request,
        max_tokens=_token_limit(max_tokens),
        limit_name=name,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def completion_sampling(
    request: CompletionRequest, *, echo_needs_text: bool = False
) -> SamplingParams:
    """As for chat. ``n`` of the result is ``best_of`` if that is larger: pick from those.

    :param echo_needs_text: prompts are token ids; the bytes that come with their
        log-probabilities are the text to echo.
    :raises ApiError: 400 for values that do not go together.
    """
    n = request.n or 1
    n_candidates = request.best_of or n
    if n_candidates < n:
        raise invalid("best_of", f"expected integer of at least n ({n}), got {n_candidates}")
    if n_candidates > n and request.stream:
        raise invalid("best_of", "cannot be streamed when it is larger than n")
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = DEFAULT_COMPLETION_TOKENS
        # A default must not turn into a complaint about a field that was not sent.
        max_tokens = max(max_tokens, request.min_tokens or 0)
    if max_tokens == 0 and not request.echo:
        raise invalid("max_tokens", "0 is only possible together with echo")
    if request.echo and request.suffix is not None:
        raise invalid("echo", "cannot be combined with suffix")
    logprobs = request.logprobs
    if logprobs is None and n_candidates > n:
        logprobs = 0  # the best are those with the highest mean log-probability
    return _sampling(
        request,
        n=n_candidates,
        max_tokens=_token_limit(max_tokens),
        limit_name="max_tokens",
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(request, max_tokens, echo_needs_text),
    )


def _prompt_logprobs(
    request: CompletionRequest, max_tokens: int, echo_needs_text: bool
) -> int | None:
    if not request.echo:
        return None
    if request.logprobs is None and (echo_needs_text or max_tokens == 0):
        return 0
    return request.logprobs


def _token_limit(max_tokens: int | None) -> int | None:
    if max_tokens is None or max_tokens == UNLIMITED:
        return None
    return min(max_tokens, INT32_MAX)


def _sampling(
    request: GenerationFields, *, max_tokens: int | None, limit_name: str, **fixed: Any
) -> SamplingParams:
    fields: dict[str, Any] = {
        name: value for name in PLAIN_FIELDS if (value := getattr(request, name)) is not None
    }
    fields.update(
        stop=_stops(request),
        logit_bias=_logit_bias(request),
        seed=None if request.seed == RANDOM_SEED else request.seed,
        max_tokens=max_tokens,
        top_k=_top_k(request),
        repeat_penalty=_repeat_penalty(request),
        **fixed,
    )
    breakers = request.dry_sequence_breakers
    if breakers is not None:
        if len(breakers) > MAX_DRY_BREAKERS:
            raise invalid("dry_sequence_breakers", f"expected at most {MAX_DRY_BREAKERS} strings")
        fields["dry_sequence_breakers"] = tuple(b for b in breakers if b)
    fields = {name: value for name, value in fields.items() if value is not None}
    min_tokens = fields.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(
            "min_tokens", f"expected at most {limit_name} ({max_tokens}), got {shown(min_tokens)}"
        )
    return SamplingParams(**fields)


def _stops(request: GenerationFields) -> tuple[str, ...]:
    stop = request.stop
    stops = tuple(s for s in ([stop] if isinstance(stop, str) else stop or ()) if s)
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"expected at most {MAX_STOPS} strings, got {len(stops)}")
    return stops


def _logit_bias(request: GenerationFields) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and int(key[:12]) <= INT32_MAX and len(key) <= 12):
            raise invalid("logit_bias", f"expected token ids as keys, got {shown(key)}")
        bias[int(key)] = value
    return bias


def _top_k(request: GenerationFields) -> int | None:
    if request.top_k is None:
        return None
    return min(max(request.top_k, 0), INT32_MAX)  # -1 and 0 both mean off


def _repeat_penalty(request: GenerationFields) -> float | None:
    ours, theirs = request.repeat_penalty, request.repetition_penalty
    if ours is not None and theirs is not None and ours != theirs:
        raise invalid(
            "repetition_penalty",
            "the same as repeat_penalty, but with another value; send one of them",
        )
    return theirs if ours is None else ours


def _refuse_unsupported(request: ChatCompletionRequest) -> None:
    """Fields that OpenAI has and this version does not; only values without effect pass."""
    refused: tuple[tuple[str, bool, str], ...] = (
        ("web_search_options", request.web_search_options is not None, "there is no web search"),
        ("moderation", request.moderation is not None, "there is no moderation"),
        (
            "verbosity",
            request.verbosity not in (None, "medium"),
            "only medium, which is the default, is supported",
        ),
    )
    for name, is_refused, reason in refused:
        if is_refused:
            raise unsupported(name, reason)
