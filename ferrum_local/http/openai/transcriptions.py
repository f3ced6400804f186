"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal

from flask import Blueprint, Response, request

from ferrum_local.audio_types import (
    TranscribedSegment,
    TranscriptionFacts,
    TranscriptionRequest,
    VadSettings,
)
from ferrum_local.engine.contracts import TranscriptionStream
from ferrum_local.http.bodies import json_response
from ferrum_local.http.forms import Form, read_form
from ferrum_local.http.model_use import model_in_use
from ferrum_local.http.openai.audio_call import (
    Patience,
    metadata,
    new_id,
    polled,
    resolve,
)
from ferrum_local.http.openai.schemas.audio import (
    TextDelta,
    TextDone,
    TokenUsage,
    Transcription,
    TranscriptionForm,
    TranslationForm,
    VerboseTranscription,
)
from ferrum_local.http.openai.subtitles import srt, vtt
from ferrum_local.http.openai.transcription_bodies import (
    duration_usage,
    token_logprobs,
    verbose_transcription,
)
from ferrum_local.http.openai.validation import invalid, parse_request, unsupported
from ferrum_local.http.openapi import documented
from ferrum_local.http.request_context import current_record
from ferrum_local.http.sse import KEEP_ALIVE, event, stream_response
from ferrum_local.http.state import state
from ferrum_local.languages import wanted_language

blueprint = Blueprint("openai_transcriptions", __name__)

LIST_FIELDS = frozenset({"timestamp_granularities", "include", "keywords"})
ENCODER_POSITIONS_PER_S = 50
_STRATEGY_FIELDS = {"type", "threshold", "prefix_padding_ms", "silence_duration_ms"}
_TEXT_TYPES = {"text": "text/plain", "srt": "text/plain", "vtt": "text/vtt"}


@blueprint.post("/v1/audio/transcriptions")
@documented(
    summary="Write down what is said in a recording",
    request=TranscriptionForm,
    response=(Transcription, VerboseTranscription),
    stream=TextDelta | TextDone,
    request_media="multipart/form-data",
    binary=("text/plain", "text/vtt"),
)
def create_transcription() -> Response:
    return _answer(TranscriptionForm, "transcribe")


@blueprint.post("/v1/audio/translations")
@documented(
    summary="Write down in English what is said in a recording",
    request=TranslationForm,
    response=(Transcription, VerboseTranscription),
    request_media="multipart/form-data",
    binary=("text/plain", "text/vtt"),
)
def create_translation() -> Response:
    return _answer(TranslationForm, "translate")


def _answer(form_type: type[TranslationForm], task: Literal["transcribe", "translate"]) -> Response:
    # Asked before a gigabyte is read: a server without such a model says so at once.
    resolve(None, "transcription")
    with ExitStack() as held:
        form = read_form(LIST_FIELDS)
        held.callback(form.file.close)
        fields = parse_request({**form.fields, "file": b""}, form_type, strict=False)
        # What translations do not take is as if it were not given.
        extra = fields if isinstance(fields, TranscriptionForm) else TranscriptionForm(file=b"")
        return _transcribed(form, fields, extra, task, held)


def _transcribed(
    form: Form,
    fields: TranslationForm,
    wants: TranscriptionForm,
    task: Literal["transcribe", "translate"],
    held: ExitStack,
) -> Response:
    """:param held: what is to be undone at the end of the reply."""
    _check_combinations(fields, wants)
    granularities = set(wants.timestamp_granularities or ["segment"])
    with_logprobs = bool(wants.include)
    job = TranscriptionRequest(
        id=new_id("transcription"),
        model_id=resolve(fields.model, "transcription").id,
        file=form.file,
        task=task,
        language=wanted_language(wants.language),
        prompt=fields.prompt,
        hotwords=", ".join(filter(None, [fields.hotwords, *(fields.keywords or ())])) or None,
        temperature=fields.temperature or 0.0,
        word_timestamps="word" in granularities,
        logprobs=with_logprobs,
        vad=_vad(fields.vad_filter, wants.chunking_strategy),
        early=bool(wants.stream),
        metadata=metadata(),
    )
    app = state()
    record = current_record()
    record.model = job.model_id
    patience = Patience()
    held.enter_context(app.gate.admit())
    held.enter_context(model_in_use(job.model_id, deadline_s=patience.limit_s))
    stream = app.engine.transcribe(job)
    held.callback(stream.close)
    held.enter_context(app.departures.watch(request.environ, stream.close))
    if wants.stream:
        events = _events(stream, patience, with_logprobs, app.config.keep_alive_s)
        return stream_response(events, on_close=held.pop_all().close)
    segments = [segment for segment in polled(stream, patience) if segment is not None]
    return _reply(
        fields.response_format or "json", task, segments, stream.facts, granularities,
        with_logprobs,
    )  # fmt: skip


def _check_combinations(fields: TranslationForm, wants: TranscriptionForm) -> None:
    format_ = fields.response_format or "json"
    if wants.timestamp_granularities and format_ != "verbose_json":
        raise invalid(
            "timestamp_granularities",
            f"only possible with response_format verbose_json, got {format_}",
        )
    if wants.include and format_ != "json":
        raise invalid("include", f"only possible with response_format json, got {format_}")
    if wants.stream and format_ not in ("json", "text"):
        raise invalid("stream", f"only possible with response_format json or text, got {format_}")


def _vad(vad_filter: bool | None, strategy: str | dict[str, object] | None) -> VadSettings | None:
    """Both switch the same thing: ``chunking_strategy`` is OpenAI's, and tunes it."""
    if strategy is None or strategy == "auto":
        return None if vad_filter is False else VadSettings()
    if vad_filter is False:
        raise invalid("vad_filter", "cannot be false together with chunking_strategy")
    if isinstance(strategy, str):
        try:
            strategy = json.loads(strategy)
        except ValueError:
            strategy = {}
    if not isinstance(strategy, dict) or strategy.get("type") != "server_vad":
        raise invalid("chunking_strategy", 'expected auto or an object of type "server_vad"')
    unknown = set(strategy) - _STRATEGY_FIELDS
    if unknown:
        raise unsupported(f"chunking_strategy.{min(unknown)[:40]}", "unknown field")
    defaults = VadSettings()
    return VadSettings(
        threshold=_number(strategy, "threshold", defaults.threshold, 0.01, 0.99),
        padding_ms=int(_number(strategy, "prefix_padding_ms", defaults.padding_ms, 0, 5000)),
        silence_ms=int(_number(strategy, "silence_duration_ms", defaults.silence_ms, 32, 10_000)),
    )


def _number(
    strategy: dict[str, object], name: str, default: float, low: float, high: float
) -> float:
    raw = strategy.get(name)
    if raw is None:
        return default
    try:
        value = float(str(raw))
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise invalid(
            f"chunking_strategy.{name}", f"expected number from {low:g} to {high:g}, got {raw!r}"
        )
    return value


def _events(
    stream: TranscriptionStream, patience: Patience, with_logprobs: bool, keep_alive_s: float
) -> Iterator[bytes]:
    segments: list[TranscribedSegment] = []
    text = ""
    wrote_s = time.monotonic()
    for segment in polled(stream, patience):
        now_s = time.monotonic()
        if segment is None:
            if now_s - wrote_s >= keep_alive_s:
                wrote_s = now_s
                yield KEEP_ALIVE
            continue
        segments.append(segment)
        delta = segment.text if text else segment.text.lstrip()
        if not delta:
            continue
        text += delta
        wrote_s = now_s
        yield event(TextDelta(delta=delta, logprobs=token_logprobs([segment], with_logprobs)))
    n_input = math.ceil(stream.facts.duration_s * ENCODER_POSITIONS_PER_S)
    n_output = sum(len(segment.tokens) for segment in segments)
    yield event(
        TextDone(
            text=text,
            logprobs=token_logprobs(segments, with_logprobs),
            usage=TokenUsage(
                input_tokens=n_input, output_tokens=n_output, total_tokens=n_input + n_output
            ),
        )
    )


def _reply(
    format_: str,
    task: Literal["transcribe", "translate"],
    segments: Sequence[TranscribedSegment],
    facts: TranscriptionFacts,
    granularities: set[str],
    with_logprobs: bool,
) -> Response:
    text = "".join(segment.text for segment in segments).strip()
    if format_ in _TEXT_TYPES:
        writers = {"srt": srt, "vtt": vtt}
        body = writers[format_](segments) if format_ in writers else text + "\n"
        return Response(body, content_type=f"{_TEXT_TYPES[format_]}; charset=utf-8")
    usage = duration_usage(facts)
    if format_ == "json":
        return json_response(
            Transcription(text=text, logprobs=token_logprobs(segments, with_logprobs), usage=usage)
        )
    return json_response(verbose_transcription(task, segments, facts, granularities))
