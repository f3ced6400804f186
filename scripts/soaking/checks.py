"""What is a well-formed answer, and when has memory grown. Pure: bytes in, complaints out."""

from __future__ import annotations

import codecs
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MIB = 1 << 20
# Allocators keep some of what a busy minute needed; more than this is a leak.
RSS_GROWTH = 0.05
RSS_SLACK_BYTES = 16 * MIB
# A greedy token whose lead is smaller may turn when sums are rounded in another order.
_CERTAIN_LEAD = 0.5  # nats
_EVENT_END = "\n\n"
DONE = "[DONE]"


class Malformed(Exception):
    """A reply that breaks its own format; the message says where."""


# -- replies ---------------------------------------------------------------------------------


def read_json(body: bytes) -> dict[str, Any]:
    """:raises Malformed: when it is not one strict JSON object."""

    def refuse(constant: str) -> Any:
        raise Malformed(f"{constant} is not JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
    except ValueError as exc:
        raise Malformed(f"not JSON ({exc}): {body[:80]!r}") from exc
    if not isinstance(value, dict):
        raise Malformed(f"not an object: {body[:80]!r}")
    return value


def read_events(body: bytes) -> list[str]:
    """The data of each server-sent event; comments are left out.

    :raises Malformed: when a frame is neither one line of data nor a comment.
    """
    text = body.decode("utf-8")
    if not text.endswith(_EVENT_END):
        raise Malformed(f"the stream ends within a frame: {text[-80:]!r}")
    events = []
    for frame in text[: -len(_EVENT_END)].split(_EVENT_END):
        if frame.startswith("data: ") and "\n" not in frame:
            events.append(frame.removeprefix("data: "))
        elif not frame.startswith(":"):
            raise Malformed(f"a frame without data: {frame[:80]!r}")
    return events


def error_problems(status: int, headers: Mapping[str, str], body: bytes) -> Iterator[str]:
    """What is wrong with a refusal."""
    if status in (429, 503) and not headers.get("retry-after", "").isdigit():
        yield f"{status} without a Retry-After"
    try:
        value = read_json(body)
    except Malformed as exc:
        yield f"{status}: {exc}"
        return
    error = value.get("error")
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        yield f"{status} without an error object: {body[:80]!r}"
    elif not error["message"] or "Traceback" in error["message"]:
        yield f"{status} with a useless message: {error['message'][:80]!r}"


def usage_problems(usage: object, *, n_choices: int, request: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(usage, dict):
        yield "no usage"
        return
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    if usage["total_tokens"] != prompt + completion:
        yield f"usage does not add up: {usage}"
    if prompt < 1 or not 0 <= cached <= prompt:
        yield f"usage has {cached} cached of {prompt} prompt tokens"
    limit = request.get("max_tokens")
    if limit is not None and completion > limit * n_choices:
        yield f"{completion} tokens for {n_choices} choices of at most {limit}"


def answer_problems(answer: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with an answer that was not streamed."""
    choices = answer["choices"]
    n_choices = expected_choices(request)
    if sorted(c["index"] for c in choices) != list(range(n_choices)):
        yield f"choices {[c['index'] for c in choices]} instead of {n_choices}"
    for choice in choices:
        message = choice.get("message")
        text = choice["text"] if message is None else message["content"]
        yield from _choice_problems(text, choice["finish_reason"], request)
        if message is not None and request.get("logprobs"):
            yield from _logprob_problems(text, choice["logprobs"]["content"], request)
    yield from usage_problems(answer.get("usage"), n_choices=n_choices, request=request)


def stream_problems(events: Sequence[str], request: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a stream that was not cut short.

    :raises Malformed: when an event is not JSON.
    """
    if not events or events[-1] != DONE or DONE in events[:-1]:
        yield f"[DONE] is not the one last event: {list(events[-2:])}"
        return
    chunks = [read_json(event.encode()) for event in events[:-1]]
    if any("error" in chunk for chunk in chunks):
        yield f"an error event: {chunks[-1]}"
        return
    if len({chunk["id"] for chunk in chunks}) != 1:
        yield "chunks of several ids"
    yield from _stream_usage_problems(chunks, request)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    is_chat = "messages" in request
    for choice in (c for chunk in chunks for c in chunk["choices"]):
        index = choice["index"]
        if index in reasons:
            yield f"choice {index} goes on after its end"
        if is_chat and index not in texts and choice["delta"].get("role") != "assistant":
            yield f"choice {index} does not begin with its role"
        piece = choice["delta"].get("content", "") if is_chat else choice["text"]
        texts[index] = texts.get(index, "") + piece
        if choice["finish_reason"] is not None:
            reasons[index] = choice["finish_reason"]
    if sorted(reasons) != list(range(expected_choices(request))):
        yield f"choices {sorted(reasons)} ended instead of {expected_choices(request)}"
    for index, text in texts.items():
        yield from _choice_problems(text, reasons.get(index), request)


def _stream_usage_problems(
    chunks: Sequence[Mapping[str, Any]], request: Mapping[str, Any]
) -> Iterator[str]:
    if not (request.get("stream_options") or {}).get("include_usage"):
        if any("usage" in chunk for chunk in chunks):
            yield "usage that was not asked for"
        return
    if chunks[-1]["choices"] or any(chunk["usage"] is not None for chunk in chunks[:-1]):
        yield "usage is not in a last chunk of its own"
    yield from usage_problems(
        chunks[-1]["usage"], n_choices=expected_choices(request), request=request
    )


def _choice_problems(text: object, reason: str | None, request: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(text, str):
        yield f"text is {text!r}"
        return
    if reason not in ("stop", "length"):
        yield f"finish_reason {reason!r}"
    stops = request.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop in text:
            yield f"the stop string {stop!r} is in {text[-60:]!r}"


def _logprob_problems(
    text: str, tokens: Sequence[Mapping[str, Any]], request: Mapping[str, Any]
) -> Iterator[str]:
    if any(t["logprob"] > 0 for t in tokens):
        yield "a log-probability above 0"
    if any(len(t["top_logprobs"]) != request.get("top_logprobs", 0) for t in tokens):
        yield f"not {request.get('top_logprobs', 0)} alternatives at each token"
    if not request.get("stop") and token_text(tokens) != text:
        yield f"the tokens are not the text: {token_text(tokens)[-60:]!r}, {text[-60:]!r}"


def expected_choices(request: Mapping[str, Any]) -> int:
    prompts = request.get("prompt")
    n_prompts = len(prompts) if isinstance(prompts, list) else 1
    return n_prompts * int(request.get("n") or 1)


def token_text(tokens: Sequence[Mapping[str, Any]]) -> str:
    """Without the character, if any, that the last token begins and no other ends."""
    data = b"".join(bytes(t["bytes"]) for t in tokens)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


# -- known answers -----------------------------------------------------------------------------


def certain_beginning(answer: Mapping[str, Any]) -> str:
    """The part of a greedy answer that rounding cannot change.

    :param answer: a chat completion with two alternatives for each token.
    """
    certain: list[Mapping[str, Any]] = []
    for token in answer["choices"][0]["logprobs"]["content"]:
        best, second = token["top_logprobs"][:2]
        if best["logprob"] - second["logprob"] < _CERTAIN_LEAD:
            break
        certain.append(token)
    return token_text(certain)


# -- metrics -----------------------------------------------------------------------------------


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus samples, the series of one name added up.

    :raises Malformed: for a line that is no sample.
    """
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        series, _, number = line.rpartition(" ")
        name = series.partition("{")[0]
        try:
            values[name] = values.get(name, 0.0) + float(number)
        except ValueError as exc:
            raise Malformed(f"not a sample: {line[:80]!r}") from exc
    return values


class RssVerdict(NamedTuple):
    """Medians of two windows, in bytes, and whether the growth between them is too large."""

    baseline: float
    end: float
    allowed: float

    @property
    def has_grown(self) -> bool:
        return self.end > self.allowed


def judge_rss(samples: Sequence[tuple[float, float]], run_s: float) -> RssVerdict:
    """Compare the second minute with the last; of a shorter run, its second and last quarter.

    :param samples: seconds since the load began, resident bytes.
    """
    window_s = min(60.0, run_s / 4)

    def median(from_s: float) -> float:
        return statistics.median(b for at_s, b in samples if from_s <= at_s <= from_s + window_s)

    baseline, end = median(window_s), median(run_s - window_s)
    return RssVerdict(baseline, end, baseline * (1 + RSS_GROWTH) + RSS_SLACK_BYTES)
