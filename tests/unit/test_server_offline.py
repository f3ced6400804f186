"""The hook behind ``--offline``: what it stops, and what it lets pass."""

from __future__ import annotations

import ipaddress
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.server.offline import OfflineError, keep_libraries_offline, make_hook
from tests.conftest import ROOT

SOCKET = object()


def refused(event: str, *arguments: object) -> bool:
    told: list[tuple[str, str]] = []
    hook = make_hook(lambda event, target: told.append((event, target)))
    try:
        hook(event, arguments)
    except OfflineError:
        assert [told_of for told_of, _ in told] == [event]
        return True
    assert told == []
    return False


@pytest.mark.parametrize(
    ("event", "target"),
    [
        ("socket.connect", ("127.0.0.1", 80)), ("socket.connect", ("127.9.9.9", 80)),
        ("socket.connect", ("::1", 80, 0, 0)), ("socket.connect", ("::ffff:127.0.0.1", 80, 0, 0)),
        ("socket.connect", "/run/a.sock"), ("socket.connect", b"\0abstract"),
        ("socket.connect", ("localhost", 80)), ("socket.sendto", ("127.0.0.1", 53)),
    ],
)  # fmt: skip
def test_this_machine_can_be_reached(event: str, target: object) -> None:
    assert not refused(event, SOCKET, target)


@pytest.mark.parametrize(
    ("event", "target"),
    [
        ("socket.connect", ("8.8.8.8", 80)), ("socket.connect", ("10.0.0.1", 80)),
        ("socket.connect", ("169.254.169.254", 80)), ("socket.connect", ("::ffff:8.8.8.8", 80)),
        ("socket.connect", ("2606:4700::1", 80, 0, 0)), ("socket.connect", ("huggingface.co", 443)),
        ("socket.connect", ("localhost.evil.example", 443)), ("socket.sendto", ("8.8.8.8", 53)),
        ("socket.sendmsg", ("8.8.8.8", 53)), ("socket.connect", (17, 4)),
    ],
)  # fmt: skip
def test_nothing_else_can(event: str, target: object) -> None:
    assert refused(event, SOCKET, target)


def test_names_are_not_asked_for() -> None:
    for event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        assert refused(event, "huggingface.co")
        assert refused(event, b"huggingface.co")
        assert not refused(event, "localhost")
        assert not refused(event, "127.0.0.1")
    assert not refused("socket.getaddrinfo", None, 80)
    assert refused("socket.getnameinfo", ("8.8.8.8", 80))


def test_other_events_pass() -> None:
    assert not refused("open", "8.8.8.8", "r", 0)
    assert not refused("socket.bind", SOCKET, ("0.0.0.0", 80))
    assert not refused("socket.sendmsg", SOCKET, None)  # connected, so judged already


@given(st.ip_addresses())
def test_only_loopback_and_unspecified_addresses_pass(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    mapped = getattr(ip, "ipv4_mapped", None) or ip
    is_near = mapped.is_loopback or ip.is_unspecified
    assert refused("socket.connect", SOCKET, (str(ip), 80)) != is_near


def test_in_a_process_of_its_own_every_way_out_is_shut() -> None:
    script = """
import http.client, socket, urllib.request
from ferrum_local.server.offline import OfflineError, refuse_connections
refuse_connections()
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
def udp():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))
def http_get():
    http.client.HTTPConnection("192.0.2.1").request("GET", "/")
def name():
    socket.gethostbyname("example.com")
def url():
    urllib.request.urlopen("http://example.com/")
def low():
    socket.socket().connect_ex(("192.0.2.1", 80))
for attempt in (udp, http_get, name, url, low):
    try:
        attempt()
    except OSError as error:
        assert "--offline" in str(error), (attempt, error)
    else:
        raise SystemExit(f"{attempt} went out")
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_onnx_runtime_is_told_to_report_to_nobody_with_or_without_the_flag() -> None:
    script = (
        "import os; os.environ['ORT_DISABLE_TELEMETRY'] = '0'; import ferrum_local; "
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_libraries_are_told() -> None:
    environment = {"HF_HUB_OFFLINE": "0", "PATH": "x"}
    keep_libraries_offline(environment)
    assert environment["HF_HUB_OFFLINE"] == "1" and environment["PATH"] == "x"
