"""``ferrum-local embed``: texts from the command line, files or stdin to vectors in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ferrum_local.cli.embedders import model_option, open_vectors, vectors_server_options
from ferrum_local.errors import ConfigError
from ferrum_local.whole_files import replacing

if TYPE_CHECKING:
    from array import array

BATCH = 64  # texts between two steps of the progress bar
STDIN = "-"
FORMATS = (".jsonl", ".npy")


@click.command(name="embed", short_help="Turn texts into vectors.")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="Text file to turn into one vector.",
)
@click.option(
    "--lines",
    metavar="PATH",
    help="File of which each line is a text; - is stdin, which is also read when there is no TEXT.",
)
@click.option(
    "--out", metavar="PATH", help="Where to write: .jsonl or .npy.  [JSON lines on stdout]"
)
@model_option
@vectors_server_options
@click.option(
    "--input-type",
    type=click.Choice(["query", "document"]),
    help="Put the model's own prefix for it first.",
)
@click.option("--dimensions", type=click.IntRange(1), help="Cut vectors to so many numbers.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long.")
def embed_command(
    texts: tuple[str, ...],
    files: tuple[str, ...],
    lines: str | None,
    out: str | None,
    model: str | None,
    url: str | None,
    api_key: str | None,
    **settings: Any,
) -> int:
    """Turn texts into vectors of length 1, in order: TEXTs, then files, then lines.

    \b
    Examples:
      ferrum-local embed "good morning" "hello"
      ferrum-local embed --lines sentences.txt --out vectors.npy
      cat notes.txt | ferrum-local embed --out vectors.jsonl
    """
    if out is not None and Path(out).suffix not in FORMATS:
        raise ConfigError(f"--out: expected a name that ends in .jsonl or .npy, got {out!r}")
    if not texts and not files and lines is None:
        lines = STDIN
    wanted = [*texts, *map(_read_text, files), *_lines_of(lines)]
    for i, text in enumerate(wanted):
        if not text.strip():
            raise ConfigError(f"text {i + 1} is empty")
    if not wanted:
        raise ConfigError("there is no text to embed")
    vectors = _vectors((model, url, api_key), wanted, settings)
    _write(out, wanted, vectors)
    return 0


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({_reason(error)})") from None


def _lines_of(path: str | None) -> Iterable[str]:
    """The lines that are not blank."""
    if path is None:
        return []
    text = sys.stdin.read() if path == STDIN else _read_text(path)
    return [line for line in text.splitlines() if line.strip()]


def _reason(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return error.strerror or type(error).__name__


def _vectors(
    source: tuple[str | None, str | None, str | None], texts: list[str], settings: dict[str, Any]
) -> list[array[float]]:
    """:param source: model, URL and key, as ``open_vectors`` takes them."""
    found: list[array[float]] = []
    with (
        open_vectors(*source) as vectors,
        click.progressbar(
            length=len(texts), label="embedding", file=sys.stderr, show_pos=True
        ) as bar,
    ):
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            found += vectors.embed(batch, **settings)
            bar.update(len(batch))
    return found


def _write(out: str | None, texts: list[str], vectors: list[array[float]]) -> None:
    if out is None:
        for line in _json_lines(texts, vectors):
            click.echo(line)
        return
    try:
        with replacing(Path(out), make_dirs=False) as file:
            if Path(out).suffix == ".npy":
                import numpy as np

                np.save(file, np.array(vectors, dtype=np.float32))
            else:
                file.writelines(f"{line}\n".encode() for line in _json_lines(texts, vectors))
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({_reason(error)})") from None


def _json_lines(texts: list[str], vectors: list[array[float]]) -> Iterator[str]:
    for text, vector in zip(texts, vectors, strict=True):
        yield json.dumps({"text": text, "embedding": vector.tolist()}, ensure_ascii=False)
