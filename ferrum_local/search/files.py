"""Finds the text files of a folder, and reads them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from ferrum_local.search.html import html_text

MAX_FILE_BYTES = 2 * 1024 * 1024  # more is data or a log, rarely something to read
# As lines of a .gitignore, whose own lines come after them. Hidden files and folders; what tools
# build, install or lock; text that nobody reads.
IGNORED = (
    ".*",
    "node_modules/", "bower_components/", "site-packages/", "vendor/", "venv/",
    "__pycache__/", "*.egg-info/", "build/", "dist/", "target/", "out/",
    "*.lock", "package-lock.json", "*.min.js", "*.min.css", "*.map", "*.svg",
)  # fmt: skip
_HTML = (".html", ".htm", ".xhtml")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TEXT_CONTROLS = b"\t\n\f\r\x1b"


class FileStamp(NamedTuple):
    """A file as the folder lists it. ``path``: below the folder, with forward slashes."""

    path: str
    size: int
    mtime_ns: int


class FileContent(NamedTuple):
    """``text`` is None for a file that is not text."""

    sha256: str
    text: str | None


class Found(NamedTuple):
    """``too_large`` has the paths of files that are left out for their size alone."""

    files: list[FileStamp]
    too_large: list[str]


class PathFilter:
    """Whether a path is one of those that were asked for.

    :param globs: as in a .gitignore; none lets every path through.
    """

    def __init__(self, globs: Sequence[str] = ()) -> None:
        self._spec = GitIgnoreSpec.from_lines(globs) if globs else None

    def matches(self, path: str) -> bool:
        return self._spec is None or self._spec.match_file(path)


def find_files(root: Path, wanted: PathFilter) -> Found:
    """Files below ``root`` that may be text, sorted. Links are not followed.

    Left out are :data:`IGNORED`, what the .gitignore files below ``root`` say, and what cannot
    be looked at.
    """
    found = Found([], [])
    rules: dict[str, list[tuple[str, GitIgnoreSpec]]] = {
        "": [("", GitIgnoreSpec.from_lines(IGNORED))]
    }
    for directory, subdirectories, names in os.walk(root):
        base = _relative(root, directory)
        own = rules.pop(base) + list(_gitignore(directory, base))
        subdirectories[:] = sorted(
            name for name in subdirectories if not _is_ignored(f"{base}{name}/", own)
        )
        for name in subdirectories:
            rules[f"{base}{name}/"] = own
        for name in sorted(names):
            path = f"{base}{name}"
            if _is_ignored(path, own) or not wanted.matches(path):
                continue
            try:
                status = os.lstat(os.path.join(directory, name))
                path.encode()
            except (OSError, UnicodeEncodeError):  # it went away; its name is not text
                continue
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                continue
            if status.st_size > MAX_FILE_BYTES:
                found.too_large.append(path)
            else:
                found.files.append(FileStamp(path, status.st_size, status.st_mtime_ns))
    return found


def read_file(path: Path) -> FileContent:
    """:raises OSError: it cannot be read."""
    data = path.read_bytes()[: MAX_FILE_BYTES + 1]
    text = _decoded(data)
    if text is not None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if path.suffix.lower() in _HTML:
            text = html_text(text)
    return FileContent(hashlib.sha256(data).hexdigest(), text)


def _decoded(data: bytes) -> str | None:
    if data.startswith(_UTF16_MARKS):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError:
            return None
    if any(byte < 32 and byte not in _TEXT_CONTROLS for byte in set(data)):
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")  # text of the time before UTF-8


def _relative(root: Path, directory: str) -> str:
    relative = Path(directory).relative_to(root).as_posix()
    return "" if relative == "." else f"{relative}/"


def _gitignore(directory: str, base: str) -> Iterator[tuple[str, GitIgnoreSpec]]:
    try:
        with open(os.path.join(directory, ".gitignore"), encoding="utf-8", errors="replace") as f:
            yield base, GitIgnoreSpec.from_lines(f)
    except OSError:
        return


def _is_ignored(path: str, rules: Sequence[tuple[str, GitIgnoreSpec]]) -> bool:
    """The innermost rules that say something about ``path`` decide."""
    for base, spec in reversed(rules):
        said = spec.check_file(path.removeprefix(base)).include
        if said is not None:
            return said
    return False
