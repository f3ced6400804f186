"""Downloads over a real connection that breaks, lies, and changes its mind."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrum_local.registry import download as download_module
from ferrum_local.registry.download import DownloadError, download
from ferrum_local.registry.hub import choose_files, is_hub_id
from tests.file_server import FileServer, file_server

DATA = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
OTHER = random.Random(2).randbytes(200_000)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as served:
        served.files["/m.gguf"] = DATA
        yield served


class Wanted:
    """The file that is fetched, and how long was waited between tries."""

    def __init__(self, server: FileServer, directory: Path) -> None:
        self.url = f"{server.url}/m.gguf"
        self.path = directory / "deep" / "m.gguf"
        self.pauses: list[float] = []
        self.progress: list[tuple[int, int | None]] = []

    def fetch(self, **more: object) -> bytes:
        download(
            self.url, self.path, pause=self.pauses.append,
            on_progress=lambda done, total: self.progress.append((done, total)), **more,  # type: ignore[arg-type]
        )  # fmt: skip
        return self.path.read_bytes()

    def refused(self, **more: object) -> str:
        with pytest.raises(DownloadError) as caught:
            self.fetch(**more)
        assert not self.path.exists()
        assert "\n" not in caught.value.message
        return caught.value.message

    @property
    def left(self) -> list[str]:
        """Everything in the directory."""
        return sorted(path.name for path in self.path.parent.iterdir())


@pytest.fixture
def wanted(server: FileServer, tmp_path: Path) -> Wanted:
    return Wanted(server, tmp_path)


def test_a_whole_file_is_put_in_place_and_nothing_else(wanted: Wanted) -> None:
    assert wanted.fetch(sha256=SHA256.upper()) == DATA
    assert wanted.left == ["m.gguf"]
    assert wanted.progress[0] == (0, len(DATA)) and wanted.progress[-1] == (len(DATA), len(DATA))


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    server: FileServer, wanted: Wanted
) -> None:
    server.cut_after = [100_000, 50_000]
    assert wanted.fetch(sha256=SHA256) == DATA
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert len(wanted.pauses) == 2


def test_the_next_command_goes_on(server: FileServer, wanted: Wanted) -> None:
    server.cut_after = [100_000, *[0] * download_module.ATTEMPTS]
    assert "100,000 bytes are kept" in wanted.refused()
    assert wanted.fetch(sha256=SHA256) == DATA
    assert server.ranges[-1] == "bytes=100000-"
    assert wanted.left == ["m.gguf"]


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_that_changed_meanwhile_is_fetched_anew(
    server: FileServer, wanted: Wanted, has_ranges: bool
) -> None:
    server.cut_after = [100_000, *[0] * download_module.ATTEMPTS]
    wanted.refused()
    server.files["/m.gguf"], server.etag, server.has_ranges = OTHER, '"2"', has_ranges
    assert wanted.fetch() == OTHER


def test_a_file_that_became_shorter_is_fetched_anew(server: FileServer, wanted: Wanted) -> None:
    server.cut_after = [100_000, *[0] * download_module.ATTEMPTS]
    wanted.refused()
    server.files["/m.gguf"] = OTHER[:1000]
    assert wanted.fetch() == OTHER[:1000]


def test_without_a_version_nothing_is_joined(server: FileServer, wanted: Wanted) -> None:
    server.etag = None
    server.cut_after = [100_000]
    assert wanted.fetch() == DATA
    assert server.ranges == [None, None]


def test_a_wrong_hash_is_refused_and_nothing_kept(wanted: Wanted) -> None:
    assert "does not have the SHA-256" in wanted.refused(sha256="0" * 64)
    assert wanted.left == []


def test_what_the_check_refuses_is_not_kept(wanted: Wanted) -> None:
    def refuse(path: Path) -> None:
        assert path.read_bytes() == DATA
        raise DownloadError("is a web page")

    assert wanted.refused(check=refuse) == "is a web page"
    assert wanted.left == []


def test_ctrl_c_during_the_check_keeps_what_came(server: FileServer, wanted: Wanted) -> None:
    def interrupt(_path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wanted.fetch(check=interrupt)
    server.cut_after = [0]  # of a body, if one came again
    assert wanted.fetch(sha256=SHA256) == DATA
    assert server.ranges == [None, f"bytes={len(DATA)}-"]
    assert server.cut_after == [0]
    assert wanted.left == ["m.gguf"]


def test_a_server_in_trouble_is_asked_again(server: FileServer, wanted: Wanted) -> None:
    server.statuses = [503, 429]
    assert wanted.fetch() == DATA
    assert wanted.pauses == [2.0, 4.0]


@pytest.mark.parametrize(("status", "said"), [(404, "404"), (401, "token"), (403, "token")])
def test_what_will_not_change_is_told_at_once(
    server: FileServer, wanted: Wanted, status: int, said: str
) -> None:
    server.statuses = [status]
    assert said in wanted.refused()
    assert wanted.pauses == []


def test_offline_is_told_at_once_also_for_a_file_that_was_begun(
    server: FileServer, wanted: Wanted
) -> None:
    server.cut_after = [100_000, *[0] * download_module.ATTEMPTS]
    wanted.refused()
    wanted.pauses.clear()
    wanted.url = "http://127.0.0.1:9/m.gguf"
    assert wanted.refused().startswith("offline: 127.0.0.1:9 cannot be reached")
    assert wanted.pauses == []


def test_a_key_is_not_given_to_where_it_redirects(server: FileServer, wanted: Wanted) -> None:
    server.redirects["/from.gguf"] = f"{server.url}/m.gguf"
    wanted.url = f"{server.url}/from.gguf"
    assert wanted.fetch(headers={"Authorization": "Bearer secret"}) == DATA
    sent = [headers.get("Authorization") for _, headers in server.requests]
    assert sent == ["Bearer secret", None]


def test_a_full_disk_is_told_before_anything_is_fetched(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda _path: usage)
    assert "MB are needed and 0 MB are free" in wanted.refused()


# The hub


def test_hub_ids() -> None:
    assert is_hub_id("owner/repo") and is_hub_id("o.w-n/re_po:x/y-Q4_K_M.gguf")
    assert not any(map(is_hub_id, ["repo", "a/b/c", "", "/b", "a/", "a b/c"]))


FILES = [
    "README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-f16.gguf",
    "big/m-BF16-00001-of-00002.gguf", "big/m-BF16-00002-of-00002.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("m-Q8_0.gguf", ["m-Q8_0.gguf"]),
        ("BF16", FILES[4:]),
        ("big/m-BF16-00002-of-00002.gguf", FILES[4:]),
    ],
)
def test_which_file_of_a_repository_is_meant(wanted: str, chosen: list[str]) -> None:
    assert choose_files(FILES, wanted, "o/r") == chosen


@pytest.mark.parametrize(
    ("files", "wanted", "said"),
    [
        (["README.md"], "", "has no GGUF file"),
        (FILES, "Q2_K", "none is called Q2_K; name one with o/r:FILE, of"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "", "there are several"),
        (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0", "there are several"),
    ],
)
def test_what_cannot_be_told_is_asked(files: list[str], wanted: str, said: str) -> None:
    with pytest.raises(DownloadError, match=said):
        choose_files(files, wanted, "o/r")
