from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

if not hasattr(socket, "AF_UNIX"):
    pytest.skip("this system has no Unix sockets", allow_module_level=True)

from ferrum_local.server import unix_socket
from ferrum_local.server.unix_socket import BindError, SocketInUse, UnixSocket


def test_only_its_owner_can_connect_and_it_goes_when_closed(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    old = os.umask(0)
    try:
        listening = UnixSocket(str(path))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listening.close()
    listening.close()
    assert not path.exists()


def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    UnixSocket(str(path)).close()


def test_a_socket_in_use_is_refused_also_with_a_full_backlog(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(path)
        taken.listen(1)
        for _ in range(4):  # each look takes a place in the backlog, which nobody empties
            with pytest.raises(SocketInUse, match="Another server listens"):
                UnixSocket(path)
        assert os.path.exists(path)


def test_a_file_or_another_user_s_socket_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(BindError, match="no socket"):
        UnixSocket(str(path))
    assert path.read_text() == "mine"
    other = tmp_path / "other"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(other))
    monkeypatch.setattr(unix_socket.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BindError, match="another user's"):
        UnixSocket(str(other))
    assert other.exists()


def test_a_path_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BindError, match="no such file or directory"):
        UnixSocket(str(tmp_path / "none" / "sock"))
    with pytest.raises(BindError, match="too long"):
        UnixSocket(str(tmp_path / ("s" * 200)))


def test_closing_leaves_the_socket_of_a_later_server(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    first = UnixSocket(str(path))
    path.unlink()
    second = UnixSocket(str(path))
    first.close()
    assert path.exists()
    second.close()


@pytest.mark.parametrize("turn", range(20))
def test_many_at_once_get_it_once(tmp_path: Path, turn: int) -> None:
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as dead:  # which all of them want to replace
        dead.bind(path)
    won: list[UnixSocket] = []
    refused: list[BindError] = []
    barrier = threading.Barrier(8)

    def take() -> None:
        barrier.wait()
        try:
            won.append(UnixSocket(path))
        except BindError as error:
            refused.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(refused) == 7
    assert all(isinstance(error, SocketInUse) for error in refused)
    won[0].close()
