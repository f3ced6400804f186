"""Who may reach a loopback server through a browser: the Host check and CORS."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from flask import Flask, Response, request

from ferrum_local.http.config import HttpConfig
from ferrum_local.http.errors import ApiError

LOCAL_NAMES = frozenset({"localhost", "tauri.localhost"})
# Origins that only an installed program can have: desktop shells, webviews, editors.
# Browser extensions are not among them; allow one with --cors-origin.
DESKTOP_SCHEMES = frozenset(
    {"app", "tauri", "file", "capacitor", "ionic", "vscode-webview", "vscode-file"}
)
ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/\s?#@\\]*)")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ALLOWED_METHODS = "GET, POST, DELETE, OPTIONS"
EXPOSED_HEADERS = "X-Request-Id, openai-processing-ms, Retry-After, X-Sample-Rate, X-Ferrum-Ignored"
PREFLIGHT_MAX_AGE_S = 600


def register_origin_checks(app: Flask, config: HttpConfig) -> None:
    """Refuse unknown Host names and foreign web pages, answer preflights, grant the rest."""
    is_known_host = host_check(config)
    is_granted = origin_check(config.cors_origins)

    def may_call(origin: str) -> bool:
        return is_granted(origin) or _is_own(origin)

    @app.before_request
    def check_host_and_origin() -> Response | None:
        host = request.environ.get("HTTP_HOST", "")
        if not is_known_host(host):
            raise ApiError(
                f"This server does not answer to the host name {host[:100]!r}. "
                "Allow it with --allowed-host.",
                status=403,
                code="host_not_allowed",
            )
        origin = request.headers.get("Origin")
        if origin is None:
            return None
        preflight = (
            request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        )
        if may_call(origin):
            return _preflight_reply() if preflight else None
        if preflight or request.method not in SAFE_METHODS or is_websocket():
            # A page on the web could otherwise use up this machine without reading a byte, and
            # over a WebSocket, which CORS does not cover, read every answer too.
            raise ApiError(
                f"Pages of the origin {origin[:100]!r} may not call this server. "
                "Allow it with --cors-origin.",
                status=403,
                code="origin_not_allowed",
            )
        return None

    @app.after_request
    def grant(response: Response) -> Response:
        response.vary.add("Origin")
        origin = request.headers.get("Origin")
        if origin is not None and may_call(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
        return response


def is_websocket() -> bool:
    """Whether the current request asks to become a WebSocket, for which browsers know no CORS."""
    return "Upgrade" in request.headers or "Sec-WebSocket-Key" in request.headers


def host_check(config: HttpConfig) -> Callable[[str], bool]:
    """A predicate over Host header values, as DNS rebinding puts a foreign name there."""
    if is_wide(config.bound_host) and not config.allowed_hosts:
        return lambda host: True
    known = {_bare(name) for name in (config.bound_host, *config.allowed_hosts)}
    anything = "*" in config.allowed_hosts

    def is_known(host: str) -> bool:
        # Browsers always send a Host, so only other programs come without one.
        if not host or anything:
            return True
        name = _host_name(host)
        return name is not None and (name == "localhost" or _is_loopback(name) or name in known)

    return is_known


def origin_check(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A predicate over Origin header values: local ones, desktop schemes, and ``patterns``."""
    exact = {pattern.lower() for pattern in patterns}
    everything = "*" in exact
    compiled = [
        re.compile(re.escape(pattern).replace(r"\*", ".*")) for pattern in exact if "*" in pattern
    ]

    def is_granted(origin: str) -> bool:
        origin = origin.lower()
        if everything or origin in exact:
            return True
        if ORIGIN.fullmatch(origin) is None:  # so that no pattern can match beyond the host
            return False
        return _is_local(origin) or any(pattern.fullmatch(origin) for pattern in compiled)

    return is_granted


def is_wide(bound_host: str) -> bool:
    """Whether this address means every interface of the machine."""
    try:
        return ipaddress.ip_address(_bare(bound_host)).is_unspecified
    except ValueError:
        return bound_host == ""


def _is_local(origin: str) -> bool:
    match = ORIGIN.fullmatch(origin)
    if match is None:
        return False
    scheme, host = match.groups()
    if scheme not in ("http", "https"):
        return scheme in DESKTOP_SCHEMES
    name = _host_name(host)
    return name is not None and (name in LOCAL_NAMES or _is_loopback(name))


def _is_own(origin: str) -> bool:
    """A page that this server itself served."""
    match = ORIGIN.fullmatch(origin.lower())
    return (
        match is not None
        and match.group(1) in ("http", "https")
        and match.group(2) == request.environ.get("HTTP_HOST", "").lower()
    )


def _host_name(host: str) -> str | None:
    """``Name:8000`` → ``name``; None when it is not a host at all."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises for nonsense
    except ValueError:
        return None
    if parts.hostname is None or parts.path or parts.query or parts.fragment or parts.username:
        return None
    return _bare(parts.hostname)


def _bare(name: str) -> str:
    return name.lower().strip("[]").rstrip(".")


def _is_loopback(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _preflight_reply() -> Response:
    response = Response(status=204)
    response.headers["Access-Control-Allow-Methods"] = ALLOWED_METHODS
    # Whatever the page wants to send: SDKs add headers of their own (x-stainless-…).
    response.headers["Access-Control-Allow-Headers"] = request.headers.get(
        "Access-Control-Request-Headers", "authorization, content-type"
    )
    response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_MAX_AGE_S)
    if "Access-Control-Request-Private-Network" in request.headers:
        response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response
