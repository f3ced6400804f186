"""The index of a folder: what is read, what is kept, what is rebuilt. Vectors are bags of words."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ferrum_local.search.files import MAX_FILE_BYTES, PathFilter, find_files, read_file
from ferrum_local.search.folder import Changes, Progress, Result, search, update
from ferrum_local.search.place import DIRECTORY, index_directory, only_writer
from ferrum_local.search.store import DATABASE, Store, Unusable, Vector

WIDTH = 64
LATER_NS = 2**62  # when every file is old


class BagOfWords:
    """Words are dimensions. ``asked`` has every passage that was embedded."""

    identity = "bag"
    max_passage_tokens = 20

    def __init__(self) -> None:
        self.asked: list[str] = []

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.asked += texts
        return [self.embed_query(text) for text in texts]

    def embed_query(self, query: str) -> Vector:
        vector = np.full(WIDTH, 1e-3, dtype=np.float32)
        for word in query.lower().replace(".", " ").split():
            vector[hashlib.sha256(word.encode()).digest()[0] % WIDTH] += 1
        return vector / np.linalg.norm(vector)


class Folder:
    """A folder and its index, opened anew for each call as the command does."""

    def __init__(self, root: Path) -> None:
        self.root = root / "notes"
        self.index = root / "index"
        self.root.mkdir()
        self.index.mkdir()
        self.model = BagOfWords()

    def write(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def open(self) -> Store:
        return Store(self.index, self.model.identity, WIDTH)

    def update(self, *globs: str, now_ns: int = LATER_NS) -> Changes:
        store = self.open()
        try:
            return update(store, self.root, PathFilter(globs), self.model, now_ns=now_ns)
        finally:
            store.close()

    def search(self, query: str, *globs: str, top: int = 3, **more: float) -> list[Result]:
        store = self.open()
        try:
            vector = self.model.embed_query(query)
            return search(store, query, vector, PathFilter(globs), top=top, **more)
        finally:
            store.close()

    def paths(self, query: str, *globs: str) -> list[str]:
        return [result.path for result in self.search(query, *globs)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# -- which files ---------------------------------------------------------------------------------


def test_text_is_found_and_what_is_hidden_built_or_ignored_is_not(folder: Folder) -> None:
    for path in (
        "a.md", "sub/b.py", "sub/deep/c", ".hidden", ".git/config", "node_modules/x/y.js",
        "build/out.txt", "x.min.js", "poetry.lock", "secret.txt", "sub/secret.txt", "sub/keep.log",
        "drop.log",
    ):  # fmt: skip
        folder.write(path, "text")
    folder.write(".gitignore", "/secret.txt\n*.log\n")
    folder.write("sub/.gitignore", "!keep.log\n")
    folder.write("empty.txt", "")
    os.symlink(folder.root / "a.md", folder.root / "link.md")
    found = find_files(folder.root, PathFilter())
    assert [stamp.path for stamp in found.files] == [
        "a.md", "sub/b.py", "sub/keep.log", "sub/secret.txt", "sub/deep/c",
    ]  # fmt: skip


def test_huge_files_are_left_out_and_named(folder: Folder) -> None:
    folder.write("big.txt", b"x" * (MAX_FILE_BYTES + 1))
    folder.write("small.txt", "hello")
    assert folder.update().too_large == ["big.txt"]
    assert folder.paths("hello") == ["small.txt"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("ü\r\nb\rc".encode(), "ü\nb\nc"),
        (b"\xef\xbb\xbfmark", "mark"),
        ("ü".encode("utf-16"), "ü"),
        ("Grüße".encode("cp1252"), "Grüße"),
        (b"\x7fELF\x00\x01", None),
        (b"%PDF\x01", None),
        (b"\xff\xfe\x00\xd8", None),
    ],
    ids=["UTF-8", "mark", "UTF-16", "Windows", "program", "control", "broken UTF-16"],
)
def test_text_is_known_by_its_bytes(folder: Folder, data: bytes, text: str | None) -> None:
    assert read_file(folder.write("x", data)).text == text


def test_pages_are_read_without_their_tags(folder: Folder) -> None:
    folder.write("page.html", "<html>\n<p>red <b>car</b></p></html>")
    folder.update()
    (result,) = folder.search("red car")
    assert (result.line, result.text) == (2, "red car")


# -- bringing it up to date --------------------------------------------------------------------


def test_only_what_is_new_or_changed_is_read_again(folder: Folder) -> None:
    one = folder.write("one.txt", "red car.")
    folder.write("two.txt", "blue sky.")
    assert folder.update() == Changes(new=2, passages=2)
    assert folder.update() == Changes()
    folder.write("three.txt", "green tree.")
    one.write_text("yellow bus.")
    (folder.root / "two.txt").unlink()
    assert folder.update() == Changes(new=1, changed=1, removed=1, passages=2)
    assert sorted(folder.model.asked) == ["blue sky.", "green tree.", "red car.", "yellow bus."]
    assert sorted(folder.paths("anything")) == ["one.txt", "three.txt"]


def test_a_file_with_a_new_time_and_the_same_content_is_not_embedded_again(folder: Folder) -> None:
    path = folder.write("one.txt", "red car.")
    folder.update()
    os.utime(path, ns=(5, 5))
    assert folder.update() == Changes()
    assert folder.model.asked == ["red car."]
    assert folder.open().files()["one.txt"].mtime_ns == 5  # it need not be read a third time


def test_a_change_within_one_tick_of_the_clock_is_found(folder: Folder) -> None:
    path = folder.write("one.txt", "red car.")
    changed_ns = path.stat().st_mtime_ns
    folder.update(now_ns=changed_ns + 1)
    path.write_text("red cat.")  # of the same length
    os.utime(path, ns=(changed_ns, changed_ns))
    assert folder.update().changed == 1
    assert folder.search("red cat")[0].text == "red cat."


def test_passages_that_did_not_change_keep_their_vectors(folder: Folder) -> None:
    paragraphs = [" ".join(f"{word}{i}" for i in range(12)) for word in "abcd"]
    folder.write("one.txt", "\n\n".join(paragraphs))
    folder.update()
    before = list(folder.model.asked)
    folder.write("one.txt", "\n\n".join(["new " * 12, *paragraphs, paragraphs[0]]))
    folder.update()
    assert folder.model.asked[len(before) :] == [("new " * 12).strip()]
    best = folder.search("b1 b2 b3")[0]
    assert (best.text, best.line) == (paragraphs[1], 5)
    assert len(folder.open()) == 6


def test_only_wanted_files_are_read_forgotten_and_found(folder: Folder) -> None:
    folder.write("a.md", "red car.")
    folder.write("b.txt", "red car.")
    assert folder.update("*.md").new == 1
    folder.update()
    assert sorted(folder.paths("red car")) == ["a.md", "b.txt"]
    assert folder.paths("red car", "*.txt") == ["b.txt"]
    (folder.root / "b.txt").unlink()
    assert folder.update("*.md") == Changes()
    assert folder.update().removed == 1


def test_what_was_done_before_an_interruption_is_kept(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrum_local.search.folder.BATCH_PASSAGES", 1)
    folder.write("a.txt", "red car.")
    folder.write("b.txt", "blue sky.")
    embed = folder.model.embed_passages

    def interrupted(texts: Sequence[str]) -> list[Vector]:
        if texts == ["blue sky."]:
            raise KeyboardInterrupt
        return embed(texts)

    monkeypatch.setattr(folder.model, "embed_passages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.update()
    monkeypatch.undo()
    assert folder.paths("red car") == ["a.txt"]
    assert folder.update() == Changes(new=1, passages=1)


def test_progress_goes_up_to_all_bytes(folder: Folder) -> None:
    folder.write("long.txt", "".join(f"{i} " for i in range(2000)))
    folder.write("short.txt", "hello")
    told: list[Progress] = []
    update(
        folder.open(), folder.root, PathFilter(), folder.model, now_ns=0, on_progress=told.append
    )
    done = [progress.done for progress in told]
    assert done == sorted(done) and len(set(done)) > 2
    assert told[-1] == Progress(8_895, 8_895)


# -- answers -----------------------------------------------------------------------------------


def test_the_best_passages_come_first_with_their_places(folder: Folder) -> None:
    folder.write("a.txt", "\n\nred car goes fast.")
    folder.write("b.txt", "red sky.")
    folder.write("c.txt", "nothing of it.")
    folder.update()
    first, second = folder.search("red car", top=2)
    assert (first.path, first.line, second.path) == ("a.txt", 3, "b.txt")
    assert first.score > second.score
    exact = folder.search("red sky", top=1)
    assert exact[0].score == pytest.approx(1.0, abs=1e-3)
    assert [r.path for r in folder.search("red sky", min_score=0.9)] == ["b.txt"]
    assert folder.search("zebra", min_score=0.9) == []


def test_of_passages_that_overlap_only_the_best_is_shown(folder: Folder) -> None:
    line = "alpha beta gamma delta. "
    folder.write("a.txt", line * 30)
    folder.update()
    assert len(folder.open()) > 1
    assert len(folder.search("alpha")) == 1


def test_an_empty_folder_has_no_answers(folder: Folder) -> None:
    assert folder.update() == Changes()
    assert folder.search("anything") == []


def test_more_results_than_a_first_look_gives_are_found(folder: Folder) -> None:
    for i in range(150):
        folder.write(f"{i}.txt", f"red number{i}")
    folder.write("last.md", "blue sea.")
    folder.update()
    assert folder.paths("red", "*.md") == ["last.md"]
    assert len(folder.search("red", top=200)) == 151


# -- what is on disk ---------------------------------------------------------------------------


def vectors_file(folder: Folder) -> Path:
    (path,) = folder.index.glob("vectors-*")
    return path


def test_one_vectors_file_is_kept_whatever_the_number_of_updates(folder: Folder) -> None:
    for i in range(3):
        folder.write(f"{i}.txt", f"text {i}")
        folder.update()
        vectors_file(folder)


def test_a_state_that_was_not_saved_is_as_if_it_had_not_been(folder: Folder) -> None:
    folder.write("a.txt", "red car.")
    folder.update()
    store = folder.open()
    store.remove("a.txt")
    store.close()
    (folder.index / "vectors-99.usearch").write_bytes(b"half written")
    assert folder.paths("red car") == ["a.txt"]
    folder.write("b.txt", "blue sky.")
    folder.update()
    assert vectors_file(folder).name == "vectors-2.usearch"


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "database", "no database", "rows"])
def test_a_damaged_index_is_never_used(folder: Folder, damage: str) -> None:
    folder.write("a.txt", "red car.")
    folder.update()
    vectors, database = vectors_file(folder), folder.index / DATABASE
    data = vectors.read_bytes()
    if damage == "cut":
        vectors.write_bytes(data[:-8])
    elif damage == "flipped":
        vectors.write_bytes(data[:-8] + bytes(byte ^ 255 for byte in data[-8:]))
    elif damage == "gone":
        vectors.unlink()
    elif damage == "database":
        database.write_bytes(b"x" * 5000)
    elif damage == "rows":
        import sqlite3

        with sqlite3.connect(database) as connection:
            connection.execute("DELETE FROM passages")
    else:
        database.unlink()
        assert folder.update().new == 1
        return
    with pytest.raises(Unusable, match="damaged"):
        folder.open()
    Store.erase(folder.index)
    assert folder.update().new == 1
    assert folder.paths("red car") == ["a.txt"]


def test_another_model_or_size_of_vectors_makes_it_unusable(folder: Folder) -> None:
    folder.write("a.txt", "red car.")
    folder.update()
    with pytest.raises(Unusable, match="another model"):
        Store(folder.index, "another", WIDTH)
    with pytest.raises(Unusable, match="another size"):
        Store(folder.index, "bag", WIDTH + 1)


def test_an_index_of_another_version_is_unusable(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.update()
    monkeypatch.setattr("ferrum_local.search.store.FORMAT", 2)
    with pytest.raises(Unusable, match="another version"):
        folder.open()


# -- where it is -------------------------------------------------------------------------------


def test_the_index_is_beside_the_files_and_git_does_not_see_it(tmp_path: Path) -> None:
    directory = index_directory(tmp_path)
    assert directory == tmp_path / DIRECTORY
    assert (directory / ".gitignore").read_text() == "*\n"


def test_the_index_of_a_folder_that_cannot_be_written_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name, appauthor: cache / name)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / DIRECTORY).write_text("a file where the directory would be")
    one, two = (index_directory(tmp_path / name) for name in ("one", "two"))
    assert one.is_relative_to(cache) and one.is_dir() and one != two
    assert one == index_directory(tmp_path / "one")


def test_who_comes_second_waits_and_is_told(tmp_path: Path) -> None:
    waits, order = threading.Event(), []

    def second() -> None:
        with only_writer(tmp_path, waits.set):
            order.append("second")

    with only_writer(tmp_path, lambda: pytest.fail("nobody else is there")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
