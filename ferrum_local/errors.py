"""Typed errors that the engine and its runtimes raise.

The HTTP layer turns each of them into a status and an OpenAI error body in one
table (``ferrum_local.http.errors``); nothing below that layer knows of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence


class FerrumError(Exception):
    """Base of every error that is meant for a caller to read.

    :param message: one sentence for a person, without a trailing traceback.
    :param param: dotted path of the request field at fault, if there is one.
    :param code: short machine-readable reason, as OpenAI's ``error.code``.
    """

    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class ConfigError(FerrumError):
    """A setting cannot be used; the message is one line that names where it came from."""

    code = "invalid_configuration"


class InvalidRequest(FerrumError):
    """The request can never succeed as it stands (HTTP 400)."""


class Unsupported(InvalidRequest):
    """A known field or combination that this server or model cannot honour."""

    code = "unsupported_parameter"


class ContextOverflow(InvalidRequest):
    """The prompt leaves no room for a single new token."""

    code = "context_length_exceeded"

    def __init__(
        self,
        *,
        n_prompt_tokens: int,
        n_ctx: int,
        at_least: bool = False,
        param: str | None = None,
    ) -> None:
        count = f"at least {n_prompt_tokens}" if at_least else str(n_prompt_tokens)
        super().__init__(
            f"This model's context is {n_ctx} tokens, but the prompt is {count} "
            f"tokens and at least one must stay free for the answer. Shorten the prompt or "
            f"start the server with a larger --ctx-size.",
            param=param,
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class TextTooLong(ContextOverflow):
    """A text has more tokens than an embedding model can read at once."""

    def __init__(self, where: str, it: str, *, n_tokens: int, n_ctx: int, model_id: str) -> None:
        InvalidRequest.__init__(
            self,
            f"{where}: {it} has {n_tokens} tokens and {model_id} reads at most {n_ctx}. Shorten "
            "it, or send truncate: true to have it cut",
            param=where,
        )
        self.n_prompt_tokens = n_tokens
        self.n_ctx = n_ctx


class ModelNotFound(FerrumError):
    """No loaded model answers to this name (HTTP 404)."""

    code = "model_not_found"

    def __init__(self, message: str, *, known_ids: Sequence[str] = ()) -> None:
        super().__init__(message, param="model")
        self.known_ids = tuple(known_ids)


class QueueFull(FerrumError):
    """Too many requests are waiting already (HTTP 429 with Retry-After)."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(FerrumError):
    """The engine is loading, draining or at its connection cap (HTTP 503)."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(FerrumError):
    """The request's time limit passed before it finished (HTTP 504)."""

    code = "deadline_exceeded"


class Cancelled(FerrumError):
    """The request was cancelled: by its client leaving or by ``cancel()``."""

    code = "cancelled"


class GenerationFailed(FerrumError):
    """A fault of ours while generating (HTTP 500)."""

    code = "generation_failed"


class ModelLoadError(FerrumError):
    """A model file cannot be used; the message names the file and why."""

    code = "model_load_failed"


class ModelUnusable(InvalidRequest):
    """The request names a model that is on disk and cannot be loaded; the message says why."""

    code = "model_load_failed"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class InvalidAudio(InvalidRequest):
    """What was sent as a recording is empty, no audio, or damaged from end to end."""

    code = "invalid_audio"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="file")


class AudioTooLong(FerrumError):
    """The recording is longer than this server takes (HTTP 413)."""

    code = "audio_too_long"

    def __init__(self, max_duration_s: float) -> None:
        super().__init__(
            f"file: is longer than the {max_duration_s / 60:g} minutes that this server takes",
            param="file",
        )
