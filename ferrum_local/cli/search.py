"""``ferrum-local search``: ask a folder of text files a question."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ferrum_local.cli.embedders import model_option, open_vectors, vectors_server_options
from ferrum_local.errors import ConfigError

if TYPE_CHECKING:
    from ferrum_local.cli.embedders import Vectors
    from ferrum_local.search.files import PathFilter
    from ferrum_local.search.folder import Changes, Progress, Result
    from ferrum_local.search.store import Store, Vector

TOP = 5
# Of the tokens that a model reads: the rest is for its prefix, its markers, and for texts that
# have more tokens together than one by one.
_PASSAGE_SHARE = 0.8


@click.command(name="search", short_help="Search the text files of a folder by meaning.")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.argument("query", nargs=-1, required=True, metavar="QUERY...")
@click.option("-k", "--top", type=click.IntRange(1), default=TOP, show_default=True,
              help="Results, at most.")  # fmt: skip
@click.option("--min-score", type=click.FloatRange(-1, 1), help="Leave out what is less similar.")
@click.option("--glob", "globs", multiple=True, metavar="PATTERN",
              help="Only such files, as '*.md' or 'notes/'.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rebuild", is_flag=True, help="Read all files anew.")
@model_option
@vectors_server_options
def search_command(
    folder: str,
    query: tuple[str, ...],
    top: int,
    min_score: float | None,
    globs: tuple[str, ...],
    as_json: bool,
    rebuild: bool,
    model: str | None,
    url: str | None,
    api_key: str | None,
) -> int:
    """Search the text files below DIR by meaning, not by words.

    The first search reads all files and keeps an index in DIR/.ferrum-search; later ones read
    only what has changed. Hidden files, what .gitignore names, and files over 2 MiB are left out.

    \b
    Examples:
      ferrum-local search notes "where did we park the car"
      ferrum-local search . --glob '*.md' -k 3 "how do I get JSON"
    """
    from ferrum_local.search.files import PathFilter
    from ferrum_local.search.folder import search

    text = " ".join(query)
    if not text.strip():
        raise ConfigError("QUERY is empty")
    root = Path(folder)
    wanted = PathFilter(globs)
    with open_vectors(model, url, api_key) as vectors:
        embedder = FolderEmbedder(vectors)
        vector = embedder.embed_query(text)
        with _updated(root, wanted, embedder, len(vector), rebuild=rebuild) as store:
            results = search(store, text, vector, wanted, top=top, min_score=min_score)
            n_passages = len(store)
    if as_json:
        click.echo(_json(text, folder, results))
    elif results:
        click.echo("\n\n".join(_shown(folder, result) for result in results))
    else:
        click.echo(_nothing(n_passages, folder, globs, min_score), err=True)
    return 0


class FolderEmbedder:
    """Vectors, as a folder's index takes them."""

    def __init__(self, vectors: Vectors) -> None:
        self._vectors = vectors
        self.identity = vectors.identity
        self.max_passage_tokens = max(1, int(vectors.max_tokens * _PASSAGE_SHARE))
        (self._n_markers,) = vectors.count_tokens([""])

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        return [n - self._n_markers for n in self._vectors.count_tokens(texts)]

    def embed_passages(self, texts: Sequence[str]) -> Sequence[Vector]:
        # Cutting is the last resort against a text of many rare characters; the next passage
        # would have its end.
        found = self._vectors.embed(texts, input_type="document", truncate=True)
        return [_numpy(vector) for vector in found]

    def embed_query(self, query: str) -> Vector:
        (vector,) = self._vectors.embed([query], input_type="query")
        return _numpy(vector)


def _numpy(vector: array[float]) -> Vector:
    import numpy as np

    return np.frombuffer(vector, dtype=np.float32)


@contextmanager
def _updated(
    root: Path, wanted: PathFilter, embedder: FolderEmbedder, n_dimensions: int, *, rebuild: bool
) -> Iterator[Store]:
    """The folder's index, up to date, for the time that no other process writes it."""
    from ferrum_local.search.place import index_directory, only_writer

    try:
        directory = index_directory(root)
    except OSError as error:
        raise ConfigError(f"{root}: there is no place for its index ({error})") from error
    if directory.parent != root:
        _tell(f"{root} cannot be written to; its index is kept in {directory}")
    with only_writer(directory, lambda: _tell("another search reads this folder; waiting for it")):
        try:
            store = _open(directory, embedder, n_dimensions, rebuild=rebuild)
            with contextlib.closing(store):
                _update(store, root, wanted, embedder)
                yield store
        except (OSError, sqlite3.Error) as error:  # a full disk, say
            raise ConfigError(f"{directory}: the index cannot be kept ({error})") from error


def _open(directory: Path, embedder: FolderEmbedder, n_dimensions: int, *, rebuild: bool) -> Store:
    from ferrum_local.search.store import Store, Unusable

    if rebuild:
        Store.erase(directory)
    try:
        return Store(directory, embedder.identity, n_dimensions)
    except Unusable as reason:
        _tell(f"{reason}; it is built anew")
    Store.erase(directory)
    return Store(directory, embedder.identity, n_dimensions)


def _update(store: Store, root: Path, wanted: PathFilter, embedder: FolderEmbedder) -> None:
    from ferrum_local.search.folder import update

    started_s = time.monotonic()
    with _progress() as on_progress:
        changes = update(
            store, root, wanted, embedder, now_ns=time.time_ns(), on_progress=on_progress
        )
    _tell_changes(changes, time.monotonic() - started_s)


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None]]:
    """A bar, from the first progress on; none where nobody looks."""
    bar = None

    def show(progress: Progress) -> None:
        nonlocal bar
        if bar is None:
            bar = click.progressbar(length=progress.total, label="reading", file=sys.stderr)
            bar.__enter__()
        bar.update(progress.done - bar.pos)

    try:
        yield show if sys.stderr.isatty() else lambda _progress: None
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)


def _tell_changes(changes: Changes, took_s: float) -> None:
    counts = [(changes.new, "new"), (changes.changed, "changed"), (changes.removed, "removed")]
    files = ", ".join(f"{n} {kind}" for n, kind in counts if n)
    if not files:
        return
    _tell(f"files: {files} ({_counted(changes.passages, 'passage')} read in {took_s:.1f} s)")
    for paths, why in ((changes.too_large, "over 2 MiB"), (changes.unreadable, "unreadable")):
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            _tell(f"left out, as {why}: {paths[0]}{more}")


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _shown(folder: str, result: Result) -> str:
    place = click.style(f"{os.path.join(folder, result.path)}:{result.line}", bold=True)
    return f"{place}  {result.score:.2f}\n    {result.excerpt}"


def _json(query: str, folder: str, results: Sequence[Result]) -> str:
    found = [
        {
            "path": os.path.join(folder, result.path),
            "line": result.line,
            "first_line": result.first_line,
            "last_line": result.last_line,
            "score": round(result.score, 4),
            "excerpt": result.excerpt,
            "text": result.text,
        }
        for result in results
    ]
    return json.dumps({"query": query, "results": found}, ensure_ascii=False, indent=2)


def _nothing(n_passages: int, folder: str, globs: tuple[str, ...], min_score: float | None) -> str:
    if not n_passages:
        return f"There is no text in {folder}."
    if min_score is not None:
        return f"Nothing is that similar; try a --min-score below {min_score:g}."
    return f"No text in {folder} is in {' or '.join(globs)}."
