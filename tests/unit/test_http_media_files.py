"""Images that requests name: by ``file://`` below one directory, by URL, or not at all."""

from __future__ import annotations

import base64
import ntpath
import os
import posixpath
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.errors import Cancelled
from ferrum_local.http.app import create_app
from ferrum_local.http.config import HttpConfig
from ferrum_local.http.errors import ApiError
from ferrum_local.http.images import MAX_REMOTE_IMAGES, ImageSource
from ferrum_local.http.media_files import named_path, read_media_file
from ferrum_local.http.remote_media import MediaRefused, RemoteMedia
from ferrum_local.http.state import state
from tests.fakes import ScriptedEngine, model_info

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


def test_nothing_is_fetched_for_a_client_that_left() -> None:
    pictures, is_gone = Pictures(), iter([False, True])
    source = ImageSource(HttpConfig(), pictures, lambda: next(is_gone))
    assert image(source, "https://pictures.example/a") == bytes(10)
    with pytest.raises(Cancelled):
        image(source, "https://pictures.example/b")
    assert len(pictures.limits) == 1


def test_where_any_file_may_be_read_urls_and_paths_mean_the_same_files(place: Path) -> None:
    config = HttpConfig(allow_local_files=True)
    carrot = place / "cats" / "möhre 1.png"
    for text in (str(carrot), carrot.as_uri(), f"FILE://localhost{place}/cats/m%C3%B6hre%201.png"):
        assert image(ImageSource(config, None), text) == PNG
    (place / "50%20.png").write_bytes(PNG)
    assert image(ImageSource(config, None), f"{place}/50%20.png") == PNG  # no URL
    assert image(ImageSource(config, None), f"file://{place.parent}/secret.png") == SECRET
    assert "no such file" in said(config, f"{place}/none.png")
    assert "is not a path" in said(config, f"{place}/\0.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes as on POSIX")
def test_a_pipe_in_the_place_of_any_file_is_not_waited_for(place: Path) -> None:
    os.mkfifo(place / "pipe.png")
    config = HttpConfig(allow_local_files=True)
    for text in (f"{place}/pipe.png", f"file://{place}/pipe.png"):
        assert "is not a file" in said(config, text)


IMAGE_MODEL = model_info("clip", kind="image-embedding")


def post_image(app: Flask, **fields: object) -> tuple[int, dict[str, Any]]:
    body = {"input": {"image": "http://169.254.169.254/latest/meta-data/"}, **fields}
    reply = app.test_client().post("/v1/embeddings", json=body)
    return reply.status_code, reply.get_json()["error"]


def test_the_flag_reaches_the_route() -> None:
    for config, said in (
        (HttpConfig(), "--allow-remote-media"),
        (HttpConfig(allow_remote_media=True), "not on a public host"),
    ):
        status, error = post_image(create_app(ScriptedEngine(models=[IMAGE_MODEL]), config))
        assert (status, error["param"]) == (400, "input.image")
        assert said in error["message"]


def test_nothing_is_fetched_without_a_model_and_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow hosts would hold all threads of the server."""
    fetched: list[str] = []

    def fetch(_self: RemoteMedia, url: str, *, max_bytes: int) -> bytes:
        fetched.append(url)
        return PNG

    monkeypatch.setattr(RemoteMedia, "fetch", fetch)
    app = create_app(ScriptedEngine(models=[IMAGE_MODEL]), HttpConfig(allow_remote_media=True))
    assert post_image(app, model="none")[0] == 404
    gate = state(app).gate
    places = [gate.admit() for _ in range(gate.limit)]
    assert post_image(app)[0] == 503
    assert fetched == []
    places[0].release()
    assert post_image(app)[0] == 404  # the scripted engine makes no vectors
    assert len(fetched) == 1
    assert gate.open == gate.limit - 1
