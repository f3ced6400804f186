from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ferrum_local.errors import ConfigError
from ferrum_local.server.launch_files import LaunchFile, launch_key

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes as on POSIX")


def launch_file(path: Path) -> LaunchFile:
    return LaunchFile(str(path), flag="--ready-file", is_ours=lambda data: data == b"ours")


def test_it_is_for_its_owner_whatever_the_umask_is_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    file = launch_file(path)
    assert not path.exists()
    old = os.umask(0)
    try:
        file.write(b"ours")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a file"]
    file.write(b"new")
    assert path.read_bytes() == b"new"
    file.remove()
    file.remove()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"ours"])
def test_what_an_earlier_launch_left_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    file = launch_file(path)
    assert path.exists()  # until it is sure that this launch gets the port
    file.clear()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"somebody's", b"x" * 100_000])
def test_a_file_of_somebody_s_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="--ready-file: .*not written by"):
        launch_file(path)
    assert path.read_bytes() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"ours")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ConfigError, match="not a file"):
        launch_file(tmp_path / "link")


def test_the_file_of_a_later_launch_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = launch_file(path), launch_file(path)
    first.write(b"ours")
    second.write(b"ours")
    first.remove()
    assert path.read_bytes() == b"ours"
    second.remove()
    assert not path.exists()


def test_each_launch_has_a_key_of_its_own(tmp_path: Path) -> None:
    keys = set()
    for _ in range(2):
        with launch_key(str(tmp_path / "token")) as key:
            assert (tmp_path / "token").read_text("ascii").strip() == key
            keys.add(key)
            # As after a kill: the next launch finds it.
            (tmp_path / "token").rename(tmp_path / "kept")
        (tmp_path / "kept").rename(tmp_path / "token")
    assert len(keys) == 2
