"""What a server refuses to do when it starts, and what it leaves behind when it is killed."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ferrum_local.http.config import HttpConfig
from ferrum_local.server.config import ServeConfig
from ferrum_local.server.exit_codes import ExitCode
from ferrum_local.server.instance_lock import NOTE_NAME, AlreadyRunning, single_instance
from ferrum_local.types import ModelSpec
from tests.fakes import wait_until
from tests.prompted_engine import FACTORY
from tests.server_process import CLIENT_TIMEOUT_S, ServerProcess, fetch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes and signals as on POSIX")


@contextmanager
def scripted(log: Path, **fields: object) -> Iterator[ServerProcess]:
    config = ServeConfig(
        models=(
            ModelSpec(id="tiny", path="ok"),
            ModelSpec(id="ears", path="ok", kind="transcription"),
        ), port=0, announce="json",
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip
    server = ServerProcess(config, log, engine_factory=FACTORY, backend="gunicorn")
    try:
        yield server
    finally:
        server.close()


# Beyond this machine


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wide_bind_without_a_key_does_not_start(tmp_path: Path, host: str) -> None:
    with scripted(tmp_path / "log", host=host) as server:
        assert server.wait() == ExitCode.USAGE
        assert f"--host {host}: other machines could use this server without a key" in server.log
        assert "--insecure" in server.log and "Listening" not in server.log


@pytest.mark.parametrize("how", ["api_key", "api_key_file", "token_file", "insecure"])
def test_with_a_key_or_when_told_so_it_does(tmp_path: Path, how: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ada: secret\n")
    fields: dict[str, object] = {
        "api_key": {"http": HttpConfig(api_keys=("secret",))},
        "api_key_file": {"http": HttpConfig(api_key_file=str(keys))},
        "token_file": {"token_file": str(tmp_path / "token")},
        "insecure": {"insecure": True},
    }[how]  # type: ignore[assignment]
    with scripted(tmp_path / "log", host="0.0.0.0", **fields) as server:  # type: ignore[arg-type]
        port = server.read_ready()["port"]
        assert fetch(port, "/v1/models")[0] == (200 if how == "insecure" else 401)
        assert ("everyone who can reach this machine" in server.log) == (how == "insecure")


def test_loopback_needs_no_key(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost"):
        with scripted(tmp_path / "log", host=host) as server:
            assert fetch(server.read_ready()["port"], "/v1/models")[0] == 200


# One of its kind


def test_a_second_single_instance_names_the_first_and_a_killed_one_is_no_obstacle(
    tmp_path: Path,
) -> None:
    place = tmp_path / "data"
    with scripted(tmp_path / "first", instance_dir=str(place)) as first:
        ready = first.read_ready()
        with scripted(tmp_path / "second", instance_dir=str(place)) as second:
            assert second.wait() == ExitCode.FAILED
            assert f"A server runs already: pid {ready['pid']}, {ready['url']}." in second.log
        assert fetch(ready["port"], "/health")[0] == 200
        with scripted(tmp_path / "other", instance_dir=str(tmp_path / "elsewhere")) as other:
            assert fetch(other.read_ready()["port"], "/health")[0] == 200
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        assert (place / NOTE_NAME).exists()  # and is not believed
        with scripted(tmp_path / "third", instance_dir=str(place)) as third:
            assert third.read_ready()["pid"] == third.process.pid
            third.terminate()
            assert third.wait() == ExitCode.STOPPED
        assert not (place / NOTE_NAME).exists()


def test_the_lock_is_of_a_directory_and_says_when_the_other_has_not_told_yet(
    tmp_path: Path,
) -> None:
    with single_instance(str(tmp_path / "a" / "b")) as one, single_instance(str(tmp_path / "c")):
        with pytest.raises(AlreadyRunning, match="is starting"):
            with single_instance(str(tmp_path / "a" / "b")):
                pass
        one.tell("http://127.0.0.1:1")
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}, http://127.0.0.1:1"):
            with single_instance(str(tmp_path / "a" / "b")):
                pass
    with single_instance(str(tmp_path / "a" / "b")):
        pass


# Nothing left behind


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what files are open")
def test_life_01_a_kill_in_the_middle_of_an_upload_leaves_no_file(tmp_path: Path) -> None:
    """Uploads lie on disk while they come, in files without a name."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        with scripted(tmp_path / "log") as server:
            port = server.read_ready()["port"]
            (worker,) = psutil.Process(server.process.pid).children()
            with socket.create_connection(("127.0.0.1", port), CLIENT_TIMEOUT_S) as client:
                client.sendall(
                    b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n"
                    b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 9000000\r\n"
                    b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
                    + bytes(2_000_000)
                )

                def is_on_disk() -> bool:
                    fds = Path(f"/proc/{worker.pid}/fd").iterdir()
                    return any(str(temporary) in os.readlink(fd) for fd in fds if fd.is_symlink())

                wait_until(is_on_disk, CLIENT_TIMEOUT_S)
                os.killpg(server.process.pid, signal.SIGKILL)
                server.process.wait()
            assert os.listdir(temporary) == []
