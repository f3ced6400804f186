"""A socket in the file system: for programs of the same user, and for nobody else."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from ferrum_local.errors import FerrumError
from ferrum_local.server.config import BACKLOG


class BindError(FerrumError):
    """The address cannot be listened on; the message says why and what to do."""

    code = "bind_failed"


class SocketInUse(BindError):
    """Another server listens on this socket already."""

    code = "socket_in_use"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"Another server listens on the socket {path} already. Stop it, or choose another "
            "path with --socket."
        )


class UnixSocket:
    """A listening socket at ``path``, mode 0600. One that nobody listens on is replaced.

    :raises SocketInUse: when a server listens there.
    :raises BindError: for any other reason; a file that is no socket is left alone.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        if not hasattr(socket, "AF_UNIX"):
            raise BindError("--socket: Python has no such sockets on this system.")
        # One that is bound but does not listen yet looks like one that nobody listens on.
        with _locked(os.path.dirname(self.path)):
            self._remove_stale()
            self.sock = self._listen()
            self._identity = _identity(self.path)

    def close(self) -> None:
        """Stop listening, and take the socket away unless it is another's by now."""
        self.sock.close()
        identity, self._identity = self._identity, None
        if identity is not None and _identity(self.path) == identity:
            os.unlink(self.path)

    def _listen(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        old_umask = os.umask(0o177)  # nobody else may connect, from the first moment on
        try:
            sock.bind(self.path)
            sock.listen(BACKLOG)
        except OSError as exc:
            sock.close()
            raise BindError(
                f"Cannot listen on the socket {self.path}: {(exc.strerror or str(exc)).lower()}."
            ) from exc
        finally:
            os.umask(old_umask)
        return sock

    def _remove_stale(self) -> None:
        if _identity(self.path) is None:
            return
        status = os.lstat(self.path)
        if not stat.S_ISSOCK(status.st_mode):
            raise BindError(f"Cannot listen on {self.path}: there is a file that is no socket.")
        if status.st_uid != os.geteuid():
            raise BindError(f"Cannot listen on {self.path}: it is another user's socket.")
        if _is_listened_on(self.path):
            raise SocketInUse(self.path)
        os.unlink(self.path)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Keep other servers from taking a socket in ``directory`` meanwhile; no file is made."""
    import fcntl

    try:
        fd = os.open(directory, os.O_RDONLY)
    except OSError:  # what is wrong with it, bind says
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_listened_on(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as exc:
            # EAGAIN: a full backlog, so somebody is there. Whatever else: leave it alone.
            if exc.errno not in (errno.EAGAIN, errno.EINPROGRESS):
                raise BindError(f"Cannot listen on {path}: {exc.strerror}.") from exc
    return True


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
