from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ferrum_local.server import listener as listening
from ferrum_local.server.listener import BindError, Listener, PortInUse, bind


@contextmanager
def bound(host: str, port: int = 0) -> Iterator[Listener]:
    listener = bind(host, port)
    try:
        yield listener
    finally:
        listener.close()


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError:
        return False
    return True


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no ::1")


def test_port_0_gives_the_real_port_in_the_url() -> None:
    with bound("127.0.0.1") as listener:
        assert listener.port > 0
        assert listener.url == f"http://127.0.0.1:{listener.port}"
        assert connects("127.0.0.1", listener.port)


def test_cli_01_a_port_in_use_is_named_with_host_and_remedy() -> None:
    with bound("127.0.0.1") as first:
        with pytest.raises(PortInUse) as raised:
            bind("127.0.0.1", first.port)
        assert raised.value.port == first.port
        assert f"Port {first.port} on 127.0.0.1" in raised.value.message
        assert "--port" in raised.value.message


def test_a_port_can_be_taken_again_right_after_it_was_used() -> None:
    with bound("127.0.0.1") as first:
        client = socket.create_connection(("127.0.0.1", first.port))
        served, _ = first.sockets[0].accept()
        served.close()  # the server's side closes first: TIME_WAIT is on this port
        client.close()
        port = first.port
    with bound("127.0.0.1", port):
        pass


@IPV6
def test_cli_02_localhost_is_both_loopbacks_on_one_port() -> None:
    with bound("localhost") as listener:
        assert listener.note is None
        assert listener.url == f"http://127.0.0.1:{listener.port}"
        assert connects("127.0.0.1", listener.port)
        assert connects("::1", listener.port)
        assert listener.bound_urls == (listener.url, f"http://[::1]:{listener.port}")


def test_cli_02_localhost_without_ipv6_loopback_is_127_0_0_1_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = listening._listen

    def without_ipv6(family: int, address: tuple[str, int], *, shown_host: str) -> socket.socket:
        if family == socket.AF_INET6:
            raise BindError(os.strerror(errno.EADDRNOTAVAIL))
        return real(family, address, shown_host=shown_host)

    monkeypatch.setattr(listening, "_listen", without_ipv6)
    with bound("localhost") as listener:
        assert listener.bound_urls == (f"http://127.0.0.1:{listener.port}",)
        assert listener.note is not None and "127.0.0.1 only" in listener.note


@IPV6
def test_cli_01_localhost_is_in_use_when_either_loopback_is() -> None:
    with bound("::1") as other:
        with pytest.raises(PortInUse) as raised:
            bind("localhost", other.port)
        assert raised.value.host == "::1"
        assert not connects("127.0.0.1", other.port)


@IPV6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_hosts_have_brackets_in_the_url(host: str) -> None:
    with bound(host) as listener:
        assert listener.url == f"http://[::1]:{listener.port}"
        assert connects("::1", listener.port)


@IPV6
def test_the_ipv6_wildcard_takes_ipv4_too() -> None:
    with bound("::") as listener:
        assert connects("127.0.0.1", listener.port)
        assert listener.url == f"http://[::1]:{listener.port}"


def test_a_wildcard_gives_clients_an_address_that_works() -> None:
    with bound("0.0.0.0") as listener:
        assert listener.bound_urls == (f"http://0.0.0.0:{listener.port}",)
        assert listener.url == f"http://127.0.0.1:{listener.port}"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("no such host", 0),
        ("", 0),
        ("198.51.100.7", 0),  # a documentation address: nobody's own
        ("127.0.0.1", 65536),
        ("127.0.0.1", -1),
        ("a" * 300, 0),
        ("\x00", 0),
    ],
)
def test_what_cannot_be_bound_is_one_sentence(host: str, port: int) -> None:
    with pytest.raises(BindError) as raised:
        bind(host, port)
    assert not isinstance(raised.value, PortInUse)
    assert "\n" not in raised.value.message
