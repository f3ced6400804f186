"""Taking the port, before anything else is done, and saying plainly why it cannot be had."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence
from typing import Any

from ferrum_local.server.config import BACKLOG, ServeConfig
from ferrum_local.server.unix_socket import BindError, UnixSocket

WILDCARDS = frozenset({"0.0.0.0", "::"})
PORT_0_TRIES = 8
SOCKET_URL = "http://localhost"  # what clients call over a socket without a port


class PortInUse(BindError):
    """Another program listens on this port already."""

    code = "port_in_use"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"Port {port} on {host} is already in use. Stop the program that has it, "
            f"or choose another port with --port (0 takes any free one)."
        )
        self.host = host
        self.port = port


class Listener:
    """One or two listening sockets on one port (two when ``localhost`` means IPv4 and IPv6), a
    Unix socket, or both.

    :ivar sockets: all of them.
    :ivar note: what a person should know about what was bound, or None.
    :ivar port: None where there is only the Unix socket.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        note: str | None = None,
        unix: UnixSocket | None = None,
    ) -> None:
        self._tcp = tuple(sockets)
        self._unix = unix
        self.sockets = self._tcp if unix is None else (*self._tcp, unix.sock)
        self.note = note
        self.host = "localhost"
        self.port: int | None = None
        if self._tcp:
            self.host, self.port = self._tcp[0].getsockname()[:2]

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return all(ipaddress.ip_address(s.getsockname()[0].partition("%")[0]).is_loopback
                   for s in self._tcp)  # fmt: skip

    @property
    def socket_path(self) -> str | None:
        return None if self._unix is None else self._unix.path

    @property
    def bound_urls(self) -> tuple[str, ...]:
        """The addresses that were bound, wildcards as they are."""
        urls = [_url(*s.getsockname()[:2]) for s in self._tcp]
        return (*urls, f"unix:{self._unix.path}") if self._unix is not None else tuple(urls)

    @property
    def url(self) -> str:
        """An address that a client on this machine can use."""
        if self.port is None:
            return SOCKET_URL
        if self.host in WILDCARDS:
            return _url("127.0.0.1" if self.host == "0.0.0.0" else "::1", self.port)
        return _url(self.host, self.port)

    def close(self) -> None:
        for sock in self._tcp:
            sock.close()
        if self._unix is not None:
            self._unix.close()


def listen(config: ServeConfig) -> Listener:
    """Take the port, the socket, or both.

    :raises BindError: as :func:`bind` and :class:`UnixSocket` do.
    """
    tcp = bind(config.host, config.port) if config.port is not None else None
    if config.socket is None:
        assert tcp is not None, "neither a port nor a socket"
        return tcp
    try:
        unix = UnixSocket(config.socket)
    except BindError:
        if tcp is not None:
            tcp.close()
        raise
    return Listener(tcp.sockets if tcp else (), note=tcp.note if tcp else None, unix=unix)


def bind(host: str, port: int) -> Listener:
    """Listen on ``host`` (name, IPv4 or IPv6 address, brackets allowed) and ``port``.

    ``localhost`` is 127.0.0.1 and, where the machine has it, ::1 too: some clients try
    one of them only. ``::`` takes IPv4 as well.

    :raises PortInUse: when another program has the port.
    :raises BindError: for any other reason.
    """
    if not 0 <= port <= 65535:
        raise BindError(f"Port {port} does not exist. Choose one from 0 to 65535.")
    if host.lower() == "localhost":
        return _bind_localhost(port)
    family, address = _resolve(host.strip("[]"), port)
    return Listener([_listen(family, address, shown_host=host)])


def _bind_localhost(port: int) -> Listener:
    for _ in range(PORT_0_TRIES):
        v4 = _listen(socket.AF_INET, ("127.0.0.1", port), shown_host="127.0.0.1")
        bound_port: int = v4.getsockname()[1]
        try:
            v6 = _listen(socket.AF_INET6, ("::1", bound_port), shown_host="::1")
        except PortInUse:
            v4.close()
            if port != 0:
                raise
        except BindError:
            return Listener(
                [v4], note="localhost: bound 127.0.0.1 only, this machine has no IPv6 loopback."
            )
        else:
            return Listener([v4, v6])
    raise BindError("No port is free on both 127.0.0.1 and ::1. Try --host 127.0.0.1.")


def _resolve(host: str, port: int) -> tuple[int, Any]:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as exc:
        raise BindError(
            f"Cannot listen on {host!r}: no such address ({_reason(exc)}). "
            f"Use 127.0.0.1 for this machine only or 0.0.0.0 for all its networks."
        ) from exc
    family, _type, _proto, _name, address = found[0]
    return family, address


def _listen(family: int, address: Any, *, shown_host: str) -> socket.socket:
    """``address`` is what the socket family takes: (host, port) or IPv6's four fields."""
    port: int = address[1]
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as exc:
        raise BindError(f"Cannot listen on {shown_host}: {_reason(exc)}.") from exc
    try:
        if os.name == "nt":
            # There, SO_REUSEADDR would let two servers share the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only_v6 = 0 if address[0] == "::" else 1
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
        # At once: until then another program could bind the same port and win.
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUse(shown_host, port) from exc
        if exc.errno == errno.EACCES:
            raise BindError(
                f"Port {port} on {shown_host} is not allowed to this user. "
                f"Choose one above 1023 with --port."
            ) from exc
        raise BindError(
            f"Cannot listen on {shown_host}, port {port}: {_reason(exc)}. "
            f"Use 127.0.0.1 for this machine only or 0.0.0.0 for all its networks."
        ) from exc
    return sock


def _reason(exc: Exception) -> str:
    return (getattr(exc, "strerror", None) or str(exc)).lower()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
