"""Which Host and Origin values are let in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.config import HttpConfig
from ferrum_local.http.origins import host_check, is_wide, origin_check


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LOCALHOST:1",
        "localhost.",
        "127.0.0.1:8000",
        "127.8.9.10",
        "[::1]:8000",
        "[::ffff:127.0.0.1]",
        "",
    ],
)
def test_sec_01_loopback_names_are_known(host: str) -> None:
    assert host_check(HttpConfig())(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:80#localhost",
        "localhost@evil.example",
        "evil.example/localhost",
        "192.168.1.5",
        "[::2]",
        "local host",
        "localhost:port",
        "[::1",
    ],
)
def test_sec_01_other_names_are_not(host: str) -> None:
    assert not host_check(HttpConfig())(host)


def test_sec_01_the_bound_address_and_allowed_names_are_known() -> None:
    known = host_check(HttpConfig(bound_host="192.168.1.5", allowed_hosts=("My.Box",)))
    assert known("192.168.1.5:8000") and known("my.box:8000") and known("127.0.0.1")
    assert not known("192.168.1.6")
    assert host_check(HttpConfig(allowed_hosts=("*",)))("evil.example")


def test_sec_01_bound_wide_any_name_is_known_unless_some_are_listed() -> None:
    for wide in ("0.0.0.0", "::", "[::]", ""):
        assert is_wide(wide)
        assert host_check(HttpConfig(bound_host=wide))("anything.example")
    listed = host_check(HttpConfig(bound_host="0.0.0.0", allowed_hosts=("my.box",)))
    assert listed("my.box") and listed("localhost") and not listed("evil.example")
    assert not is_wide("127.0.0.1") and not is_wide("localhost")


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "https://localhost:3000",
        "http://127.0.0.1:5173",
        "http://[::1]:8080",
        "tauri://localhost",
        "http://tauri.localhost",
        "https://tauri.localhost",
        "app://obsidian.md",
        "capacitor://localhost",
        "vscode-webview://0abc",
    ],
)
def test_sec_02_local_pages_and_desktop_apps_are_granted(origin: str) -> None:
    assert origin_check(())(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://localhost.evil.example",
        "http://evil.example:80@localhost",
        "https://tauri.localhost.evil.example",
        "http://localhost\\.evil.example",
        "chrome-extension://abcdef",
        "javascript:alert(1)",
        "app:",
        "http://",
    ],
)
def test_sec_02_everyone_else_is_not(origin: str) -> None:
    assert not origin_check(())(origin)


def test_sec_02_the_list_takes_origins_patterns_null_and_everything() -> None:
    granted = origin_check(
        ("https://chat.example", "https://*.team.example", "chrome-extension://*", "null")
    )
    assert granted("https://chat.example") and granted("HTTPS://Chat.Example")
    assert granted("https://a.team.example") and granted("chrome-extension://abc")
    assert granted("null") and granted("http://localhost:1")
    assert not granted("https://team.example.evil")
    assert not granted("https://evil.example/.team.example")
    assert not granted("http://chat.example") and not granted("https://chat.example:444")
    assert origin_check(("*",))("https://evil.example")


@given(st.text(max_size=60))
def test_no_header_value_can_break_the_checks(value: str) -> None:
    host_check(HttpConfig())(value)
    granted = origin_check(("https://*.a.b",))(value)
    assert isinstance(granted, bool)
