"""Fetches a file that a request names by its URL, from public hosts only and within limits.

Whoever may send requests must not reach what only this machine can reach: each name is resolved
once, all of its addresses are judged, and the connection goes to the address that was judged, so
that a name which means another address a moment later (DNS rebinding) gains nothing. Each
redirect is a new URL and judged again. Proxies of the environment are not used.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from ferrum_local import __version__
from ferrum_local.http.public_addresses import is_public

MAX_REDIRECTS = 3
TIMEOUT_S = 15.0  # for one file, from its name to its last byte
MAX_URL_CHARS = 2048
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 64 * 1024
_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream"})

Resolve = Callable[[str, int, float], Sequence[str]]


class MediaRefused(Exception):
    """Why a file is not fetched or read, for the client: a sentence without a subject."""


class _Target(NamedTuple):
    scheme: str
    host: str  # ASCII, without brackets
    port: int
    host_header: str
    request_target: str


class RemoteMedia:
    """A fetcher. Safe from any thread.

    :param media_type: what the reply must be, up to the slash: ``image``.
    :param is_allowed: judges addresses; another one than :func:`is_public` is for tests.
    :param resolve: name, port and seconds to addresses; another one is for tests.
    :param tls: None: the system's certificates.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        media_type: str = "image",
        timeout_s: float = TIMEOUT_S,
        is_allowed: Callable[[str], bool] = is_public,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._media_type = media_type
        self._timeout_s = timeout_s
        self._is_allowed = is_allowed
        self._resolve = resolve or resolve_addresses
        self._tls = tls

    def fetch(self, url: str, *, max_bytes: int | None = None) -> bytes:
        """:param max_bytes: a lower limit than that of this fetcher.

        :raises MediaRefused: it is not allowed, not there, too large, too slow, or of another type.
        """
        deadline = time.monotonic() + self._timeout_s
        limit = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        for _ in range(MAX_REDIRECTS + 1):
            found = self._fetch_one(url, deadline, limit)
            if isinstance(found, bytes):
                return found
            if url.lower().startswith("https:") and not found.lower().startswith("https:"):
                raise MediaRefused("leads from https to an address without it")
            url = found
        raise MediaRefused(f"leads through more than {MAX_REDIRECTS} redirects")

    def _fetch_one(self, url: str, deadline: float, limit: int) -> bytes | str:
        """The file, or the URL that the host says it is at."""
        target = _parse(url)
        addresses = self._judged(target, deadline)
        connection = _PinnedConnection(target, addresses, deadline, self._tls_context(target))
        # Timeouts of a socket start anew with every byte; this one does not.
        alarm = threading.Timer(max(0.0, deadline - time.monotonic()), connection.cut)
        alarm.daemon = True
        alarm.start()
        try:
            return self._exchange(connection, target, url, limit)
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= deadline:
                raise MediaRefused(f"took longer than {self._timeout_s:g} s") from None
            raise MediaRefused(f"cannot be fetched ({_reason(error)})") from None
        finally:
            alarm.cancel()
            connection.close()

    def _judged(self, target: _Target, deadline: float) -> Sequence[str]:
        try:
            addresses = self._resolve(target.host, target.port, deadline - time.monotonic())
        except OSError:
            raise MediaRefused(f"is on a host that is not known ({target.host[:100]})") from None
        # One of them is enough to refuse: which one would be used is up to the name's owner.
        if not addresses or not all(self._is_allowed(address) for address in addresses):
            raise MediaRefused("is not on a public host")
        return addresses

    def _tls_context(self, target: _Target) -> ssl.SSLContext | None:
        if target.scheme != "https":
            return None
        return self._tls or ssl.create_default_context()

    def _exchange(
        self, connection: _PinnedConnection, target: _Target, url: str, limit: int
    ) -> bytes | str:
        connection.request(
            "GET",
            target.request_target,
            headers={
                "Host": target.host_header,
                "User-Agent": f"ferrum-local/{__version__}",
                "Accept": f"{self._media_type}/*",
                "Accept-Encoding": "identity",
                "Connection": "close",
            },
        )
        reply = connection.getresponse()
        if reply.status in _REDIRECTS:
            location = reply.headers.get("Location", "")
            if not location:
                raise MediaRefused("leads nowhere: a redirect without a location")
            return urljoin(url, location)
        if reply.status != 200:
            raise MediaRefused(f"was answered with status {reply.status}")
        self._check_head(reply, limit)
        data = bytearray()
        while piece := reply.read(_CHUNK_BYTES):
            data += piece
            if len(data) > limit:
                raise _too_large(limit)
        if connection.is_cut:  # without a length, that looks like the end
            raise TimeoutError
        if reply.length:
            raise http.client.IncompleteRead(b"", reply.length)
        return bytes(data)

    def _check_head(self, reply: http.client.HTTPResponse, limit: int) -> None:
        kind = reply.headers.get_content_type() if "Content-Type" in reply.headers else ""
        if kind not in _UNTYPED and kind.partition("/")[0] != self._media_type:
            raise MediaRefused(f"is {kind[:60]}, not {self._media_type}")
        if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise MediaRefused("came compressed, which was not asked for")
        if (reply.length or 0) > limit:
            raise _too_large(limit)


class _PinnedConnection(http.client.HTTPConnection):
    """Connects to one of the addresses that were judged, whatever its host's name means now."""

    def __init__(
        self,
        target: _Target,
        addresses: Sequence[str],
        deadline: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(target.host, target.port)
        self._addresses = addresses
        self._deadline = deadline
        self._tls = tls
        self.is_cut = False
        self._in_use: socket.socket | None = None  # ``sock`` is given up once a reply has begun

    def connect(self) -> None:
        raw = self._connect_to_first()
        raw.settimeout(max(0.01, self._deadline - time.monotonic()))
        if self._tls is not None:
            # The certificate must be that of the name, which is not what was connected to.
            raw = self._tls.wrap_socket(raw, server_hostname=self.host)
        self.sock = self._in_use = raw

    def _connect_to_first(self) -> socket.socket:
        error: OSError = TimeoutError("no time left")
        for address in self._addresses:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                return socket.create_connection((address, self.port), left_s)
            except OSError as exc:
                error = exc
        raise error

    def cut(self) -> None:
        """End whatever is under way; safe from any thread."""
        self.is_cut = True
        if self._in_use is not None:
            with suppress(OSError):  # closed already
                # Not the method of a TLS socket, which is not safe from another thread.
                socket.socket.shutdown(self._in_use, socket.SHUT_RDWR)


def resolve_addresses(host: str, port: int, timeout_s: float) -> Sequence[str]:
    """All addresses of a name. The system's resolver knows no time limit, so a thread asks it.

    :raises OSError: there are none, or no answer came in time.
    """
    answers: queue.SimpleQueue[Sequence[str] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))
        else:
            answers.put(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, timeout_s))
    except queue.Empty:
        raise TimeoutError("the name was not resolved in time") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _parse(url: str) -> _Target:
    if len(url) > MAX_URL_CHARS:
        raise MediaRefused(f"is longer than {MAX_URL_CHARS} characters")
    # What parsers of URLs disagree on: they must not be able to see another host than we do.
    if "\\" in url or any(not c.isprintable() or c.isspace() for c in url):
        raise MediaRefused("has a character that no URL has")
    try:
        parts = urlsplit(url)
        port = parts.port
        name = parts.hostname or ""
        host = name if ":" in name else name.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        raise MediaRefused("is not a URL") from None
    if parts.scheme not in _PORTS:
        raise MediaRefused("is not an http:// or https:// URL")
    if parts.username is not None or parts.password is not None:
        raise MediaRefused("has a user name or password in it")
    if not host or port == 0:
        raise MediaRefused("names no host")
    shown = f"[{host}]" if ":" in host else host
    default_port = _PORTS[parts.scheme]
    if port is not None and port != default_port:
        shown += f":{port}"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = f"?{quote(parts.query, safe='/%:@!$&()*+,;=~-._?')}" if parts.query else ""
    return _Target(parts.scheme, host, port or default_port, shown, path + query)


def _too_large(limit: int) -> MediaRefused:
    return MediaRefused(f"is larger than {limit} bytes")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not valid for this host"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
