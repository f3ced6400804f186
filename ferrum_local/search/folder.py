"""Brings the index of a folder up to date, and answers questions from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ferrum_local.search.excerpts import excerpt_for
from ferrum_local.search.files import FileStamp, PathFilter, find_files, read_file
from ferrum_local.search.passages import Passage, split_passages
from ferrum_local.search.store import KnownFile, Store, Vector

PASSAGE_TOKENS = 200  # small models were trained on texts of about this length
OVERLAP_TOKENS = 40
BATCH_PASSAGES = 64  # that are embedded together
SAVE_AFTER_PASSAGES = 2048  # so much at most is done again after an interruption
# A file may change twice within the resolution of its time, so a young time proves nothing.
SETTLED_AFTER_NS = 2_000_000_000


class Embedder(Protocol):
    """What makes the vectors; they have length 1."""

    @property
    def identity(self) -> str:
        """Another one whenever the vectors would be others."""
        ...

    @property
    def max_passage_tokens(self) -> int:
        """Tokens that a passage may have, its prefix and markers not counted."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Of each text, without markers."""
        ...

    def embed_passages(self, texts: Sequence[str]) -> Sequence[Vector]: ...

    def embed_query(self, query: str) -> Vector: ...


@dataclasses.dataclass
class Changes:
    """What an update did, in files, and in passages that got a vector."""

    new: int = 0
    changed: int = 0
    removed: int = 0
    passages: int = 0
    too_large: list[str] = dataclasses.field(default_factory=list)
    unreadable: list[str] = dataclasses.field(default_factory=list)


class Result(NamedTuple):
    """A passage that answers. ``line``: where its excerpt begins; ``score``: a cosine."""

    path: str
    line: int
    first_line: int
    last_line: int
    score: float
    excerpt: str
    text: str


class Progress(NamedTuple):
    """Bytes of files, done and in all."""

    done: int
    total: int


class _Pending(NamedTuple):
    stamp: FileStamp
    sha256: str
    passages: list[Passage]


def update(
    store: Store,
    root: Path,
    wanted: PathFilter,
    embedder: Embedder,
    *,
    now_ns: int,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> Changes:
    """Read the files that are new or changed, forget those that are gone, and save.

    Files that are not ``wanted`` stay as the index has them. What was done is saved also when
    this is interrupted.

    :param now_ns: since the epoch.
    """
    known = store.files()
    found = find_files(root, wanted)
    paths = {stamp.path for stamp in found.files}
    to_read = [
        stamp
        for stamp in found.files
        if stamp.path not in known or stamp[1:] != known[stamp.path][:2]
    ]
    total = sum(stamp.size for stamp in to_read)
    indexing = _Indexing(store, embedder, now_ns, lambda n: on_progress(Progress(n, total)))
    indexing.changes.too_large = found.too_large
    try:
        for path in known:
            if path not in paths and wanted.matches(path):
                store.remove(path)
                indexing.changes.removed += 1
        for stamp in to_read:
            indexing.add(root, stamp, known.get(stamp.path))
        indexing.flush()
    finally:
        store.save()
    return indexing.changes


class _Indexing:
    """Reads files, and embeds the passages of several of them together."""

    def __init__(
        self, store: Store, embedder: Embedder, now_ns: int, on_bytes: Callable[[int], None]
    ) -> None:
        self.changes = Changes()
        self._store = store
        self._embedder = embedder
        self._now_ns = now_ns
        self._on_bytes = on_bytes
        self._pending: list[_Pending] = []
        self._n_bytes = 0
        self._n_unsaved = 0

    def add(self, root: Path, stamp: FileStamp, before: KnownFile | None) -> None:
        try:
            content = read_file(root / stamp.path)
        except OSError:
            self.changes.unreadable.append(stamp.path)
            self._n_bytes += stamp.size
            return
        if self._now_ns - stamp.mtime_ns < SETTLED_AFTER_NS:
            # It may change again without a new time: look at it once more the next time.
            stamp = stamp._replace(mtime_ns=0)
        if before is not None and before.sha256 == content.sha256:
            self._store.touch(stamp)
            self._n_bytes += stamp.size
            return
        self.changes.new += before is None and content.text is not None
        self.changes.changed += before is not None
        passages = split_passages(
            content.text or "",
            self._embedder.count_tokens,
            max_tokens=min(PASSAGE_TOKENS, self._embedder.max_passage_tokens),
            overlap_tokens=OVERLAP_TOKENS,
        )
        self._pending.append(_Pending(stamp, content.sha256, passages))
        if sum(len(file.passages) for file in self._pending) >= BATCH_PASSAGES:
            self.flush()

    def flush(self) -> None:
        """Put the pending files into the store. Passages that they had keep their vectors."""
        if not self._pending:
            return
        known = [self._store.vectors_of(file.stamp.path) for file in self._pending]
        missing = [
            (vectors, text)
            for file, vectors in zip(self._pending, known, strict=True)
            for text in dict.fromkeys(passage.text for passage in file.passages)
            if text not in vectors
        ]
        size = sum(file.stamp.size for file in self._pending)
        for start in range(0, len(missing), BATCH_PASSAGES):
            batch = missing[start : start + BATCH_PASSAGES]
            rows = self._embedder.embed_passages([text for _, text in batch])
            for (vectors, text), row in zip(batch, rows, strict=True):
                vectors[text] = row
            self._on_bytes(self._n_bytes + size * (start + len(batch)) // len(missing))
        for file, vectors in zip(self._pending, known, strict=True):
            rows = [vectors[passage.text] for passage in file.passages]
            self._store.put(file.stamp, file.sha256, file.passages, rows)
        self._pending.clear()
        self._n_bytes += size
        self._on_bytes(self._n_bytes)
        self.changes.passages += len(missing)
        self._n_unsaved += len(missing)
        if self._n_unsaved >= SAVE_AFTER_PASSAGES:
            self._store.save()
            self._n_unsaved = 0


def search(
    store: Store,
    query: str,
    vector: Vector,
    wanted: PathFilter,
    *,
    top: int,
    min_score: float | None = None,
) -> list[Result]:
    """The ``top`` best passages of files that are ``wanted``; none overlaps a better one."""
    results: list[Result] = []
    for passage_id, score in store.nearest(vector):
        if len(results) == top or (min_score is not None and score < min_score):
            break
        path, passage = store.passage(passage_id)
        if not wanted.matches(path) or any(
            path == other.path
            and passage.first_line <= other.last_line
            and passage.last_line >= other.first_line
            for other in results
        ):
            continue
        excerpt = excerpt_for(passage.text, query)
        results.append(
            Result(
                path=path,
                line=passage.first_line + excerpt.line,
                first_line=passage.first_line,
                last_line=passage.last_line,
                score=score,
                excerpt=excerpt.text,
                text=passage.text,
            )
        )
    return results
