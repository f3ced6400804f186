"""Fetch a file over HTTP: resumed where it broke off, checked, and whole or not there at all."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from ferrum_local import __version__
from ferrum_local.errors import FerrumError
from ferrum_local.whole_files import sha256_of

BLOCK_BYTES = 1 << 20
ATTEMPTS = 5  # without a single new byte; what goes on slowly is not given up
TIMEOUT_S = 30.0  # of silence
FIRST_PAUSE_S = 1.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")

OnProgress = Callable[[int, "int | None"], None]


class DownloadError(FerrumError):
    """A file cannot be fetched; the message is for a person."""

    code = "download_failed"


class _Interrupted(Exception):
    """Worth another try; the text says why it broke off."""


class _Unreachable(_Interrupted):
    """There was not even a connection."""


class _Answer(NamedTuple):
    start: int  # where the body begins in the file
    size: int | None  # of the whole file
    version: str | None  # what the server tells versions of the file apart by


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    headers: Mapping[str, str] | None = None,
    check: Callable[[Path], None] = lambda _path: None,
    on_progress: OnProgress = lambda _done, _total: None,
    timeout_s: float = TIMEOUT_S,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Put what ``url`` has at ``target``. A broken download goes on with the next call.

    :param headers: for the first host only, not for where it redirects to.
    :param check: raises if the complete file is not what was wanted; it is deleted then.
    :param on_progress: gets bytes so far, and of the whole if that is known.
    :raises DownloadError: with what is to be done about it.
    """
    part = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = n_tries = 0
    while True:
        before = _size_of(part)
        n_tries += 1
        try:
            _go_on(url, part, headers or {}, on_progress, timeout_s)
            break
        except _Interrupted as why:
            if n_tries == 1 and isinstance(why, _Unreachable):
                raise DownloadError(f"offline: {why}") from why
            failures = 0 if _size_of(part) > before else failures + 1
            if failures >= ATTEMPTS:
                raise DownloadError(
                    f"{url}: {why}; {_size_of(part):,} bytes are kept, the same command goes on"
                ) from why
            pause(FIRST_PAUSE_S * 2**failures)
    try:
        if sha256 is not None and sha256_of(part) != sha256.lower():
            raise DownloadError(
                f"{url}: what came does not have the SHA-256 {sha256}; it was deleted"
            )
        check(part)
    except Exception:  # not Ctrl-C: many GB would have to come again
        _forget(part)
        raise
    os.replace(part, target)
    _forget(part)


def _go_on(
    url: str, part: Path, headers: Mapping[str, str], on_progress: OnProgress, timeout_s: float
) -> None:
    """One request for what is missing.

    :raises _Interrupted: it broke off. DownloadError: there is no use in another try.
    """
    done = _size_of(part)
    version_file = _version_file(part)
    request = urllib.request.Request(url, headers={"User-Agent": f"ferrum-local/{__version__}"})
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    version = version_file.read_text("utf-8") if version_file.exists() else ""
    if done and version:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", version)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer = _answer_of(response)
            if answer.version:
                version_file.write_text(answer.version, "utf-8")
            else:  # nothing to tell by whether the rest would belong to the beginning
                version_file.unlink(missing_ok=True)
            _check_space(part, answer)
            with part.open("r+b" if part.exists() else "wb") as file:
                file.truncate(answer.start)
                file.seek(answer.start)
                _copy(response, file, answer, on_progress)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            if error.headers.get("Content-Range") == f"bytes */{done}":
                return  # all is here: only the check was missed
            _forget(part)  # more than there is now: another file
            raise _Interrupted("the file changed") from error
        if error.code in (408, 429) or error.code >= 500:
            raise _Interrupted(f"the server says {error.code} {error.reason}") from error
        hint = "; it needs a token that may read it" if error.code in (401, 403) else ""
        raise DownloadError(f"{url}: {error.code} {error.reason}{hint}") from error
    except urllib.error.URLError as error:
        raise _Unreachable(f"{request.host} cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise DownloadError(f"{error.filename}: {error.strerror}") from error
        reason = str(error) or type(error).__name__
        raise _Interrupted(f"the connection broke ({reason})") from error


def _answer_of(response: http.client.HTTPResponse) -> _Answer:
    version = response.headers.get("ETag") or response.headers.get("Last-Modified")
    if version is not None and version.startswith("W/"):
        version = None  # a weak one does not promise the same bytes
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
    if response.status == 206 and found:
        size = None if found[2] == "*" else int(found[2])
        return _Answer(int(found[1]), size, version)
    length = response.headers.get("Content-Length")
    return _Answer(0, int(length) if length and length.isdecimal() else None, version)


def _check_space(part: Path, answer: _Answer) -> None:
    if answer.size is None:
        return
    free = shutil.disk_usage(part.parent).free
    missing = answer.size - answer.start
    if missing > free:
        raise DownloadError(
            f"{part.parent}: {missing / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free"
        )


def _copy(
    source: http.client.HTTPResponse, target: IO[bytes], answer: _Answer, on_progress: OnProgress
) -> None:
    done = answer.start
    on_progress(done, answer.size)
    while block := source.read(BLOCK_BYTES):
        target.write(block)
        done += len(block)
        on_progress(done, answer.size)
    target.flush()
    os.fsync(target.fileno())
    if answer.size is not None and done < answer.size:
        raise _Interrupted(f"the connection broke at {done:,} of {answer.size:,} bytes")


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)
