"""Files that requests name: by ``file://`` URLs below one directory, or anywhere."""

from __future__ import annotations

import ntpath
import os
import re
import stat
from types import ModuleType
from urllib.parse import unquote_to_bytes

from ferrum_local.http.remote_media import MediaRefused

SCHEME = "file://"
_LOCALHOST = "localhost/"
# Names that Windows takes for devices, with any extension.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|conin\$|conout\$)(\..*)?", re.IGNORECASE)


def read_media_file(url: str, directory: str | None, max_bytes: int) -> bytes:
    """The file that ``url`` names.

    :param directory: of ``--media-dir``. None: the file may be anywhere.
    :raises MediaRefused: it is not a file below ``directory`` once all links are followed, or
        too large.
    """
    root = os.path.realpath(directory or os.curdir)
    path = os.path.realpath(named_path(url, root))
    # What is outside and what does not exist are told apart from inside only.
    if directory is not None and not _is_below(path, root):
        raise MediaRefused("is not below the directory of --media-dir")
    return _read_resolved(path, max_bytes)


def read_any_file(path: str, max_bytes: int) -> bytes:
    """:raises MediaRefused: it is not a file, or too large."""
    if "\0" in path:
        raise MediaRefused("is not a path")
    return _read_resolved(os.path.realpath(path), max_bytes)


def _read_resolved(path: str, max_bytes: int) -> bytes:
    """:param path: with all links followed."""
    # Not through a link that took the file's place since, and not waiting for a pipe's writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(path, flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such file"
        raise MediaRefused(f"cannot be read ({reason.lower()})") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise MediaRefused("is not a file")
    with os.fdopen(fd, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise MediaRefused(f"is larger than {max_bytes} bytes")
    return data


def named_path(url: str, root: str, flavour: ModuleType = os.path) -> str:
    """The path in ``file:///absolute/path`` or, below ``root``, in ``file://relative/path``.

    :param flavour: ``posixpath`` or ``ntpath``.
    :raises MediaRefused: a form that a system would take for more than a plain path.
    """
    try:
        text = os.fsdecode(unquote_to_bytes(url.removeprefix(SCHEME)))
    except UnicodeDecodeError:
        raise MediaRefused("is not a path") from None
    if "\0" in text:
        raise MediaRefused("is not a path")
    if text.lower().startswith(_LOCALHOST):
        text = text[len(_LOCALHOST) - 1 :]
    if flavour is ntpath:
        text = _windows_path(text)
    path: str = flavour.normpath(flavour.join(root, text))
    return path


def _windows_path(text: str) -> str:
    text = text.replace("/", "\\")
    if text.startswith("\\\\"):
        raise MediaRefused("names another computer or a device")
    if re.match(r"\\[A-Za-z]:", text):  # file:///C:/x
        text = text[1:]
    drive, rest = ntpath.splitdrive(text)
    if drive and not rest.startswith("\\"):
        raise MediaRefused("is a path relative to a drive")
    # A colon would name a stream of a file; trailing dots and blanks are dropped by the system.
    for part in rest.split("\\"):
        is_odd = part.endswith((".", " ")) and part not in (".", "..")
        if is_odd or ":" in part or _DEVICES.fullmatch(part):
            raise MediaRefused("has a name in it that is none on Windows")
    return text


def _is_below(path: str, root: str) -> bool:
    try:
        return os.path.commonpath((path, root)) == root and path != root
    except ValueError:  # another drive
        return False
