"""What a generation route knows of one call before it runs: model, identity, limits."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Sequence

import msgspec
from flask import request

from ferrum_local import __version__
from ferrum_local.engine.contracts import Engine, ModelInfo
from ferrum_local.errors import ModelNotFound
from ferrum_local.http.auth import given_key
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.errors import ApiError
from ferrum_local.http.model_use import keep_alive_seconds
from ferrum_local.http.openai.schemas import GenerationFields
from ferrum_local.http.openai.validation import unsupported
from ferrum_local.http.request_context import current_record
from ferrum_local.types import Constraint, InferenceRequest, Priority, Prompt, SamplingParams

PRIORITY_HEADER = "X-Ferrum-Priority"
TIMEOUT_HEADER = "X-Ferrum-Timeout"  # seconds for queueing and generation together


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same on an answer and on every chunk of a stream. ``created``: epoch seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP call to a generation route."""

    envelope: Envelope
    stream: bool
    include_usage: bool
    priority: Priority
    client_id: str
    session_id: str | None
    deadline_s: float | None
    keep_alive_s: float | None
    created_at: float
    metadata: dict[str, str]

    def requests(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        *,
        prediction: str | None = None,
        constraint: Constraint | None = None,
    ) -> tuple[InferenceRequest, ...]:
        """One engine request a prompt; with several, their ids are numbered."""
        ids = [self.envelope.id]
        if len(prompts) > 1:
            # Which prompt of a call; the call itself is cancelled by its X-Request-Id.
            ids = [f"{self.envelope.id}-{i}" for i in range(len(prompts))]
        return tuple(
            InferenceRequest(
                id=id_,
                model_id=self.envelope.model,
                prompt=prompt,
                sampling_params=sampling,
                stream=self.stream,
                priority=self.priority,
                client_id=self.client_id,
                session_id=self.session_id,
                created_at=self.created_at,
                deadline_s=self.deadline_s,
                prediction=prediction,
                constraint=constraint,
                metadata=self.metadata,
            )
            for id_, prompt in zip(ids, prompts, strict=True)
        )


def new_call(
    fields: GenerationFields, *, id_prefix: str, engine: Engine, config: HttpConfig
) -> Call:
    """Read the current request's headers and resolve its model.

    :param id_prefix: ``chatcmpl`` or ``cmpl``.
    :raises ApiError: 400 for a bad header, or stream options without a stream.
    :raises ModelNotFound: nothing answers to ``fields.model``.
    """
    if fields.stream_options is not None and not fields.stream:
        raise ApiError(
            "stream_options: only possible together with stream: true", param="stream_options"
        )
    priority = request_priority()
    deadline_s = request_deadline_s(config)
    keep_alive_s = keep_alive_seconds(fields.keep_alive)
    info = resolve_model(engine, fields.model, config)
    _check_loras(fields, info)
    now = time.time()
    return Call(
        envelope=Envelope(
            id=f"{id_prefix}-{secrets.token_hex(16)}",
            created=int(now),
            model=info.id,
            system_fingerprint=fingerprint(info),
        ),
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        priority=priority,
        client_id=client_id(config),
        session_id=fields.user,
        deadline_s=deadline_s,
        keep_alive_s=keep_alive_s,
        created_at=now,
        metadata={**(fields.metadata or {}), "x_request_id": current_record().request_id},
    )


def _check_loras(fields: GenerationFields, info: ModelInfo) -> None:
    """Adapters are set for all requests of a model: only what is so already can be asked for.

    :raises ApiError: 400 for anything else.
    """
    if fields.lora is None:
        return
    wanted = {lora.id: lora.scale for lora in fields.lora}
    scales = info.lora_scales
    # llama.cpp's server takes an adapter that is not named as switched off.
    if any(i >= len(scales) for i in wanted) or scales != tuple(
        wanted.get(i, 0.0) for i in range(len(scales))
    ):
        raise unsupported(
            "lora",
            "adapters and their scales are set when the server is started (--lora), for all "
            f"requests; of {info.id} they are "
            f"{[{'id': i, 'scale': s} for i, s in enumerate(scales)] or 'none'}",
        )


def fingerprint(info: ModelInfo) -> str:
    """Names build and model: changes when either does."""
    facts = f"{__version__}\n{info.id}\n{info.size_bytes}\n{info.created}"
    return f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"


def resolve_model(
    engine: Engine, name: str | None, config: HttpConfig, kind: str = "chat"
) -> ModelInfo:
    """The model that a route of ``kind`` is to use for ``name``.

    :raises ModelNotFound: nothing answers to it.
    """
    try:
        return engine.resolve_model(name, kind)
    except ModelNotFound:
        if not config.any_model_name:
            raise
        return engine.resolve_model(None, kind)


def request_priority() -> Priority:
    """What the request's header asks for.

    :raises ApiError: 400, there is no such priority.
    """
    name = request.headers.get(PRIORITY_HEADER, Priority.INTERACTIVE.name)
    try:
        return Priority[name.strip().upper()]
    except KeyError:
        known = ", ".join(p.name.lower() for p in reversed(Priority))
        raise ApiError(
            f"{PRIORITY_HEADER}: expected one of {known}, got {name[:40]!r}", param=PRIORITY_HEADER
        ) from None


def request_deadline_s(config: HttpConfig) -> float | None:
    """The client's own limit; it can only shorten the server's."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return config.request_timeout_s
    try:
        wanted_s = float(text)
    except ValueError:
        wanted_s = math.nan
    if not (math.isfinite(wanted_s) and wanted_s > 0):
        raise ApiError(
            f"{TIMEOUT_HEADER}: expected seconds above 0, got {text[:40]!r}", param=TIMEOUT_HEADER
        )
    return min(wanted_s, config.request_timeout_s or wanted_s)


def client_id(config: HttpConfig) -> str:
    """Who is asking: the key if keys are in use (never the key itself), else the address."""
    key = given_key() if config.needs_key else None
    if key is not None:
        return f"key-{hashlib.sha256(key).hexdigest()[:16]}"
    return request.remote_addr or "local"
