"""Images that requests name: by ``file://`` below one directory, by URL, or not at all."""

from __future__ import annotations

import base64
import ntpath
import os
import posixpath
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.errors import ApiError
from ferrum_local.http.images import MAX_REMOTE_IMAGES, ImageSource
from ferrum_local.http.media_files import named_path, read_media_file
from ferrum_local.http.remote_media import MediaRefused, RemoteMedia
from tests.fakes import ScriptedEngine

PNG = b"\x89PNG, or so it says"
SECRET = b"not for you"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``media/`` with two pictures, and a secret beside it."""
    media = tmp_path / "media"
    (media / "cats").mkdir(parents=True)
    (media / "one.png").write_bytes(PNG)
    (media / "cats" / "möhre 1.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(SECRET)
    (tmp_path / "media-other").mkdir()
    (tmp_path / "media-other" / "secret.png").write_bytes(SECRET)
    return media


def read(url: str, media: Path, max_bytes: int = 1000) -> bytes:
    return read_media_file(url, str(media), max_bytes)


def test_files_below_the_directory_are_read_by_either_form(place: Path) -> None:
    for url in (
        "file://one.png", f"file://{place}/one.png", f"file://localhost{place}/one.png",
        "file://cats/m%C3%B6hre%201.png", "file://cats/möhre 1.png", "file://cats/../one.png",
        f"{(place / 'cats' / 'möhre 1.png').as_uri()}",
    ):  # fmt: skip
        assert read(url, place) == PNG


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "..%2Fsecret.png", "%2e%2e/secret.png", "cats/../../secret.png",
     "./../media-other/secret.png", "/etc/passwd", "localhost/etc/passwd", "", ".", "cats/.."],
)  # fmt: skip
def test_nothing_outside_is_read(place: Path, path: str) -> None:
    with pytest.raises(MediaRefused, match="not below the directory"):
        read(f"file://{path}", place)


def test_what_is_outside_looks_alike_whether_it_is_there_or_not(place: Path) -> None:
    said = set()
    for name in ("secret.png", "nothing.png"):
        with pytest.raises(MediaRefused) as caught:
            read(f"file://../{name}", place)
        said.add(str(caught.value))
    assert len(said) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="links and pipes as on POSIX")
def test_links_lead_no_further_and_pipes_are_not_waited_for(place: Path) -> None:
    (place / "out.png").symlink_to(place.parent / "secret.png")
    (place / "up").symlink_to(place.parent)
    (place / "in.png").symlink_to(place / "one.png")
    (place / "round.png").symlink_to(place / "round.png")
    os.mkfifo(place / "pipe.png")
    for url in ("file://out.png", "file://up/secret.png"):
        with pytest.raises(MediaRefused, match="not below the directory"):
            read(url, place)
    assert read("file://in.png", place) == PNG
    for url, said in (
        ("file://pipe.png", "is not a file"), ("file://cats", "is not a file"),
        ("file://round.png", "cannot be read"), ("file://none.png", "no such file"),
        ("file://one.png%00.jpg", "is not a path"),
    ):  # fmt: skip
        with pytest.raises(MediaRefused, match=said):
            read(url, place)


def test_a_directory_that_is_itself_a_link_works(place: Path) -> None:
    alias = place.parent / "alias"
    alias.symlink_to(place)
    assert read("file://one.png", alias) == PNG
    assert read(f"file://{alias}/one.png", alias) == PNG


def test_a_file_over_the_limit_is_refused(place: Path) -> None:
    with pytest.raises(MediaRefused, match="larger than 5 bytes"):
        read("file://one.png", place, max_bytes=5)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/C:/media/a.png", "C:\\media\\a.png"),
        ("a.png", "C:\\media\\a.png"),
        ("cats/a.png", "C:\\media\\cats\\a.png"),
        ("..%5C..%5Cx.png", "C:\\x.png"),
        ("/d:/x.png", "d:\\x.png"),
        ("/x.png", "C:\\x.png"),
    ],
)
def test_paths_on_windows(path: str, meant: str) -> None:
    assert named_path(f"file://{path}", "C:\\media", ntpath) == meant


@pytest.mark.parametrize(
    "path",
    ["//server/share/x.png", "/%5C%5Cserver/share/x.png", "%5C%5C?%5CC:%5Cx.png", "C:x.png",
     "a.png:stream", "a.png::$DATA", "CON", "nul.png", "cats/COM1.png", "a.png.", "a.png ",
     "/C:/media/aux/x.png"],
)  # fmt: skip
def test_forms_that_windows_takes_for_more_than_a_path(path: str) -> None:
    with pytest.raises(MediaRefused):
        named_path(f"file://{path}", "C:\\media", ntpath)


@given(st.text(max_size=40))
def test_any_text_is_refused_or_a_path_without_dots(text: str) -> None:
    for flavour, root in ((posixpath, "/media"), (ntpath, "C:\\media")):
        try:
            path = named_path(f"file://{text}", root, flavour)
        except MediaRefused:
            continue
        assert ".." not in path.replace("\\", "/").split("/")
        assert "\0" not in path


# What a server allows


def image(source: ImageSource, text: str) -> bytes:
    return source.read(text, "input[0].image")


def said(config: HttpConfig, text: str, remote: RemoteMedia | None = None) -> str:
    with pytest.raises(ApiError) as caught:
        image(ImageSource(config, remote), text)
    assert caught.value.status == 400
    assert caught.value.param == "input[0].image"
    return caught.value.message


def test_by_default_a_request_carries_its_images_itself(place: Path) -> None:
    config = HttpConfig()
    data = base64.b64encode(PNG).decode()
    assert image(ImageSource(config, None), data) == PNG
    assert image(ImageSource(config, None), f"data:image/png;base64,{data}") == PNG
    for url in ("http://pictures.example/a.png", "HTTPS://pictures.example/a"):
        assert "--allow-remote-media" in said(config, url)
    for path in (f"file://{place}/one.png", f"FILE://{place}/one.png", f"{place}/one.png"):
        assert "--media-dir" in said(config, path)
    assert "URLs of this kind" in said(config, "ftp://pictures.example/a.png")


def test_a_directory_of_media_opens_only_itself(place: Path) -> None:
    config = HttpConfig(media_dir=str(place))
    assert image(ImageSource(config, None), "file://one.png") == PNG
    assert image(ImageSource(config, None), f"FILE://{place}/one.png") == PNG
    assert "not below" in said(config, f"file://{place.parent}/secret.png")
    assert "--allow-local-files" in said(config, f"{place}/one.png")  # no URL


class Pictures(RemoteMedia):
    """Every URL is a picture of 10 bytes."""

    def __init__(self) -> None:
        super().__init__(max_bytes=1000)
        self.limits: list[int | None] = []

    def fetch(self, url: str, *, max_bytes: int | None = None) -> bytes:
        self.limits.append(max_bytes)
        if max_bytes is not None and max_bytes < 10:
            raise MediaRefused(f"is larger than {max_bytes} bytes")
        return bytes(10)


def test_a_request_may_name_some_urls_and_have_a_body_full_of_bytes() -> None:
    pictures = Pictures()
    source = ImageSource(HttpConfig(max_body_bytes=1000), pictures)
    for _ in range(MAX_REMOTE_IMAGES):
        assert image(source, "https://pictures.example/a") == bytes(10)
    assert pictures.limits == [1000 - 10 * i for i in range(MAX_REMOTE_IMAGES)]
    with pytest.raises(ApiError, match="at most 32 URLs"):
        image(source, "https://pictures.example/a")
    small = HttpConfig(max_body_bytes=5)
    assert "larger than 5 bytes" in said(small, "https://pictures.example/a", pictures)


def test_the_flag_reaches_the_route() -> None:
    def ask(app: Any) -> str:
        body = {"input": {"image": "http://169.254.169.254/latest/meta-data/"}}
        reply = app.test_client().post("/v1/embeddings", json=body)
        assert reply.status_code == 400
        assert reply.get_json()["error"]["param"] == "input.image"
        return str(reply.get_json()["error"]["message"])

    assert "--allow-remote-media" in ask(create_app(ScriptedEngine()))
    config = HttpConfig(allow_remote_media=True)
    assert "not on a public host" in ask(create_app(ScriptedEngine(), config))
