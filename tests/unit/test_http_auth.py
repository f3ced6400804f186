"""API keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.keys import BadKeyFile, parse_key_file
from tests.fakes import ScriptedEngine

CONFIG = HttpConfig(api_keys=("first-key", "zweiter-schlüssel"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer   first-key "},
        {"api-key": "first-key"},
        {"X-API-Key": "first-key"},
        {"Authorization": "Bearer " + "zweiter-schlüssel".encode().decode("latin-1")},
    ],
)
def test_a_right_key_opens(headers: dict[str, str]) -> None:
    client = create_app(ScriptedEngine(), CONFIG).test_client()
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers, code",
    [
        ({}, "missing_api_key"),
        ({"Authorization": "Bearer "}, "missing_api_key"),
        ({"Authorization": "Basic first-key"}, "missing_api_key"),
        ({"Authorization": "Bearer first-ke"}, "invalid_api_key"),
        ({"Authorization": "Bearer first-key2"}, "invalid_api_key"),
        ({"api-key": "\xff\xfe"}, "invalid_api_key"),
    ],
)
def test_a_wrong_or_missing_key_does_not(headers: dict[str, str], code: str) -> None:
    client = create_app(ScriptedEngine(), CONFIG).test_client()
    for path in ("/v1/models", "/metrics", "/openapi.json", "/unknown"):
        response = client.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert response.get_json()["error"]["type"] == "authentication_error"
        assert response.get_json()["error"]["code"] == code
        assert "first-key" not in response.text


def test_probes_and_preflights_need_no_key() -> None:
    client = create_app(ScriptedEngine(), CONFIG).test_client()
    for path in ("/", "/health", "/health/live"):
        assert client.get(path).status_code == 200
    preflight = client.options(
        "/v1/chat/completions",
        headers={"Origin": "tauri://localhost", "Access-Control-Request-Method": "POST"},
    )
    assert preflight.status_code == 204


def test_without_configured_keys_none_is_asked_for() -> None:
    client = create_app(ScriptedEngine()).test_client()
    assert client.get("/v1/models").status_code == 200
    assert client.get("/v1/models", headers={"Authorization": "Bearer x"}).status_code == 200


# Keys in a file


class KeyFile:
    """A server whose keys are in a file, and the file."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        path.write_text(text)
        config = HttpConfig(api_keys=("fixed-key",), api_key_file=str(path))
        self._client = create_app(ScriptedEngine(), config).test_client()

    def opens(self, key: str) -> bool:
        headers = {"Authorization": f"Bearer {key}"}
        with self._client.get("/v1/models", headers=headers) as reply:
            assert reply.status_code in (200, 401)
            return reply.status_code == 200


def test_a_key_is_added_and_revoked_by_a_change_of_the_file(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "ada: one\nbob: two\nthree\n")
    assert [keys.opens(key) for key in ("one", "two", "three", "four")] == [True] * 3 + [False]
    assert not keys.opens("ada: one") and not keys.opens("ada")
    keys.path.write_text("ada: one\neve: four\n")
    assert [keys.opens(key) for key in ("one", "two", "three", "four")] == [
        True, False, False, True,
    ]  # fmt: skip
    # As editors and configuration managers do it: another file in its place.
    other = tmp_path / "new"
    other.write_text("eve: four\n")
    os.replace(other, keys.path)
    assert [keys.opens(key) for key in ("one", "four", "fixed-key")] == [False, True, True]


@pytest.mark.parametrize("text", [None, "", "# none\n", "two words\n", "ada: one\ntwo words\n"])
def test_a_file_that_cannot_be_used_any_more_opens_nothing(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Taking the file away must not leave its keys valid."""
    keys = KeyFile(tmp_path / "keys", "ada: one\n")
    assert keys.opens("one")
    if text is None:
        keys.path.unlink()
    else:
        keys.path.write_text(text)
    assert not keys.opens("one")
    assert keys.opens("fixed-key")
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1 and "no key of it is valid" in said[0]
    assert not keys.opens("one")
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1  # once, not with every request
    keys.path.write_text("ada: one\n")
    assert keys.opens("one")


def test_the_access_line_names_the_key_and_does_not_show_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    keys = KeyFile(tmp_path / "keys", "ada@desk: s3cr3t-one\ns3cr3t-two\n")
    for key in ("s3cr3t-one", "s3cr3t-two", "fixed-key", "s3cr3t-wrong"):
        keys.opens(key)
    named = [getattr(r, "key", None) for r in caplog.records if r.name == "ferrum_local.access"]
    assert named == ["ada@desk", "line-2", "api-key-1", None]
    assert "key=ada@desk" in caplog.text
    assert "s3cr3t" not in caplog.text and "fixed-key" not in caplog.text


@given(st.lists(st.from_regex(r"[!-~]{1,20}", fullmatch=True), min_size=1, max_size=8))
def test_any_keys_that_a_file_can_hold_are_read_back(keys: list[str]) -> None:
    named = "".join(f"user-{i}: {key}\n" for i, key in enumerate(keys))
    assert parse_key_file(named.encode()) == tuple((f"user-{i}", k) for i, k in enumerate(keys))
    bare = [key for key in keys if not key.startswith("#")]
    if bare:
        read = parse_key_file("\n".join(bare).encode())
        assert [key.key for key in read] == bare


@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused_without_showing_a_key(data: bytes) -> None:
    try:
        keys = parse_key_file(data)
    except BadKeyFile as error:
        assert len(str(error)) < 80
    else:
        assert keys and all(key.key.isascii() and key.key.isprintable() for key in keys)
