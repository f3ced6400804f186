"""API keys: who may call. No keys configured: anyone who can reach the port."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from flask import Flask, request

from ferrum_local.http.errors import ApiError

KEY_HEADERS = ("api-key", "x-api-key")  # beside Authorization: Bearer
# Browsers can send no headers with a WebSocket, so OpenAI's clients put the key here.
KEY_SUBPROTOCOL = "openai-insecure-api-key."
# Probes and a first look at the server need no key. /metrics and /openapi.json do: they
# tell which models are used and how much.
OPEN_ROUTES = frozenset({"/", "/health", "/health/live"})


def register_auth(app: Flask, api_keys: Sequence[str]) -> None:
    """Ask for one of ``api_keys`` on every route but the open ones.

    Preflights carry no key: ``register_origin_checks`` comes first and answers them.
    """
    if not api_keys:
        return
    digests = [_digest(key.encode()) for key in api_keys]

    @app.before_request
    def require_key() -> None:
        if request.url_rule is not None and request.url_rule.rule in OPEN_ROUTES:
            return
        given = given_key()
        if given is None:
            raise _unauthorized(
                "An API key is needed: send it as Authorization: Bearer YOUR_KEY.",
                "missing_api_key",
            )
        if not _matches_any(_digest(given), digests):
            raise _unauthorized("This API key is not valid.", "invalid_api_key")


def given_key() -> bytes | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return _raw(token.strip())
    for name in KEY_HEADERS:
        if value := request.headers.get(name, "").strip():
            return _raw(value)
    for name in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        if name.strip().startswith(KEY_SUBPROTOCOL):
            return _raw(name.strip().removeprefix(KEY_SUBPROTOCOL))
    return None


def _raw(header_value: str) -> bytes:
    # WSGI hands header bytes over as latin-1 text.
    return header_value.encode("latin-1", "replace")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _matches_any(digest: bytes, allowed: Sequence[bytes]) -> bool:
    """Compare with every key, so that the time taken tells nothing."""
    matches = [hmac.compare_digest(digest, one) for one in allowed]
    return any(matches)


def _unauthorized(message: str, code: str) -> ApiError:
    return ApiError(
        message, status=401, code=code, headers={"WWW-Authenticate": 'Bearer realm="ferrum-local"'}
    )
