"""The index of one folder on disk: passages in SQLite, their vectors in a usearch file.

SQLite's commit is what makes a state the current one: it names the file with the vectors (a new
one each time) and holds its hash, so the two never disagree, whenever the process ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ferrum_local import cpp_runtime
from ferrum_local.search.files import FileStamp
from ferrum_local.search.passages import Passage

cpp_runtime.start()
from usearch.index import Index  # noqa: E402 - only after the runtime that it must not replace

FORMAT = 1  # raised whenever an older index would give other results
DATABASE = "passages.sqlite"
EXACT_UP_TO = 50_000  # vectors; comparing all of them takes some milliseconds
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE files (
    path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, sha256 TEXT NOT NULL
);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL,
    first_line INTEGER NOT NULL, last_line INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE INDEX passages_by_path ON passages (path);
"""

Vector = npt.NDArray[np.float32]


class Unusable(Exception):
    """The index on disk cannot be gone on with; the text says why."""


class KnownFile(NamedTuple):
    size: int
    mtime_ns: int
    sha256: str


class StoredPassage(NamedTuple):
    path: str
    passage: Passage


class Store:
    """An open index. Nothing is kept unless ``save`` is called.

    :param directory: of the index; it exists.
    :param model: identifies what made the vectors.
    :raises Unusable: what is there is damaged, or of another model or version. Nothing is lost
        by ``erase``.
    """

    def __init__(self, directory: Path, model: str, n_dimensions: int) -> None:
        self._directory = directory
        self._vectors = Index(ndim=n_dimensions, metric="cos", dtype="f16")
        self._vectors_changed = False
        self._generation = 0
        self._db = sqlite3.connect(directory / DATABASE)
        try:
            self._open({"format": str(FORMAT), "model": model, "dimensions": str(n_dimensions)})
        except (sqlite3.DatabaseError, RuntimeError, ValueError, OSError, KeyError) as error:
            self._db.close()
            raise Unusable("the index is damaged") from error
        except Unusable:
            self._db.close()
            raise

    def _open(self, wanted: dict[str, str]) -> None:
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchall():
            self._db.executescript(_SCHEMA)
            self._db.executemany("INSERT INTO facts VALUES (?, ?)", wanted.items())
            self._db.commit()
            return
        facts = dict(self._db.execute("SELECT name, value FROM facts"))
        if facts["format"] != wanted["format"]:
            raise Unusable("the index was written by another version")
        if facts["model"] != wanted["model"]:
            raise Unusable("the index was made with another model")
        if facts["dimensions"] != wanted["dimensions"]:
            raise Unusable("the index has vectors of another size")
        if self._db.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise Unusable("the index is damaged")
        (n_passages,) = self._db.execute("SELECT count(*) FROM passages").fetchone()
        if "generation" in facts:
            self._generation = int(facts["generation"])
            data = self._vectors_path(self._generation).read_bytes()
            # A file that is not as it was written must not reach native code.
            if hashlib.sha256(data).hexdigest() != facts["vectors_sha256"]:
                raise Unusable("the index is damaged")
            self._vectors.load(data)
        if len(self._vectors) != n_passages or self._vectors.ndim != int(wanted["dimensions"]):
            raise Unusable("the index is damaged")

    @staticmethod
    def erase(directory: Path) -> None:
        """Remove what a store keeps in ``directory``."""
        for path in (directory / DATABASE, directory / f"{DATABASE}-journal"):
            path.unlink(missing_ok=True)
        for path in directory.glob("vectors-*"):
            path.unlink(missing_ok=True)

    def __len__(self) -> int:
        """How many passages there are."""
        return len(self._vectors)

    # -- files ---------------------------------------------------------------------------------

    def files(self) -> dict[str, KnownFile]:
        rows = self._db.execute("SELECT path, size, mtime_ns, sha256 FROM files")
        return {path: KnownFile(*rest) for path, *rest in rows}

    def vectors_of(self, path: str) -> dict[str, Vector]:
        """The vectors of a file's passages by their text."""
        rows = self._db.execute("SELECT text, id FROM passages WHERE path = ?", (path,))
        return {
            text: np.asarray(self._vectors.get(i, dtype="f32"), dtype=np.float32)
            for text, i in rows
        }

    def touch(self, stamp: FileStamp) -> None:
        """Take note of a file's new time; its content is the same."""
        self._db.execute(
            "UPDATE files SET size = ?, mtime_ns = ? WHERE path = ?",
            (stamp.size, stamp.mtime_ns, stamp.path),
        )

    def put(
        self, stamp: FileStamp, sha256: str, passages: Sequence[Passage], vectors: Sequence[Vector]
    ) -> None:
        """Take a file's passages, with a vector each, in place of those that it had."""
        self.remove(stamp.path)
        self._db.execute("INSERT INTO files VALUES (?, ?, ?, ?)", (*stamp, sha256))
        for passage, vector in zip(passages, vectors, strict=True):
            cursor = self._db.execute(
                "INSERT INTO passages (path, first_line, last_line, text) VALUES (?, ?, ?, ?)",
                (stamp.path, passage.first_line, passage.last_line, passage.text),
            )
            assert cursor.lastrowid is not None
            self._vectors.add(cursor.lastrowid, vector)
            self._vectors_changed = True

    def remove(self, path: str) -> None:
        """Forget a file and its passages."""
        ids = self._db.execute("SELECT id FROM passages WHERE path = ?", (path,)).fetchall()
        if ids:
            self._vectors.remove(np.array(ids, dtype=np.uint64).ravel())
            self._vectors_changed = True
        self._db.execute("DELETE FROM passages WHERE path = ?", (path,))
        self._db.execute("DELETE FROM files WHERE path = ?", (path,))

    def save(self) -> None:
        """Make the current state that of the disk, wholly or not at all."""
        if self._vectors_changed:
            self._generation += 1
            data = bytes(self._vectors.save() or b"")
            path = self._vectors_path(self._generation)
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            facts = {
                "generation": str(self._generation),
                "vectors_sha256": hashlib.sha256(data).hexdigest(),
            }
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())
        self._db.commit()
        self._vectors_changed = False
        for other in self._directory.glob("vectors-*"):
            if other != self._vectors_path(self._generation):
                other.unlink(missing_ok=True)

    # -- search --------------------------------------------------------------------------------

    def nearest(self, vector: Vector) -> Iterator[tuple[int, float]]:
        """Ids of passages and their similarity (a cosine), best first."""
        seen: set[int] = set()
        count = 64
        exact = len(self) <= EXACT_UP_TO
        while len(seen) < len(self):
            matches = self._vectors.search(vector, min(count, len(self)), exact=exact)
            found = [
                (int(key), 1.0 - float(distance))
                for key, distance in zip(matches.keys, matches.distances, strict=True)
                if int(key) not in seen
            ]
            if not found:  # an approximate search may not reach all
                return
            seen.update(key for key, _ in found)
            yield from found
            count *= 8

    def passage(self, passage_id: int) -> StoredPassage:
        path, *rest = self._db.execute(
            "SELECT path, text, first_line, last_line FROM passages WHERE id = ?", (passage_id,)
        ).fetchone()
        return StoredPassage(path, Passage(*rest))

    def close(self) -> None:
        """What was not saved is dropped."""
        with contextlib.suppress(sqlite3.DatabaseError):
            self._db.rollback()
        self._db.close()

    def _vectors_path(self, generation: int) -> Path:
        return self._directory / f"vectors-{generation}.usearch"
