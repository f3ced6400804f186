"""``ferrum-local search`` as people run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import pytest

from ferrum_local.cli.app import run
from ferrum_local.cli.embedders import open_vectors
from ferrum_local.cli.search import FolderEmbedder
from ferrum_local.search.files import PathFilter
from ferrum_local.search.folder import search as find
from ferrum_local.search.folder import update
from ferrum_local.search.store import Store
from tests.conftest import MINILM, MINILM_Q8_0, ROOT, RunningServer

INDEX = ".ferrum-search"
# What people ask who have just installed it, and the page of the docs that says it.
QUESTIONS = {
    "How do I build it for my graphics card?": "install.md",
    "prebuilt wheels so that nothing is compiled": "install.md",
    "How does an Electron app start and stop the server?": "sidecar.md",
    "does the child die when the app crashes?": "sidecar.md",
    "under which licence are the libraries that it uses?": "dependencies.md",
    "why was this package chosen, and what else was weighed?": "dependencies.md",
    "create subtitles for a recording": "speech.md",
    "a voice that reads text aloud in another language": "speech.md",
    "where is ferrum.toml looked for?": "configuration.md",
    "search my notes by meaning": "search.md",
}


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def results(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.err
        results: list[dict[str, Any]] = json.loads(self.out)["results"]
        return results


Search = Callable[..., Done]


@pytest.fixture
def search(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Search:
    """Runs the command in the folder that has the notes, without starting Python anew."""
    monkeypatch.chdir(notes)
    for name in list(os.environ):
        if name.startswith("FERRUM_"):
            monkeypatch.delenv(name)

    def search_(*arguments: str) -> Done:
        capsys.readouterr()
        return Done(run(["search", *arguments]), *capsys.readouterr())

    return search_


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "car.txt").write_text("Errands.\n\nWe parked the car on level four, near the lift.\n")
    (folder / "food.md").write_text("# Dinner\n\nTomato soup needs basil and a little cream.\n")
    (folder / "work").mkdir()
    (folder / "work" / "plan.txt").write_text("The release is planned for the end of March.\n")
    return tmp_path


def test_a_question_finds_the_file_the_line_and_the_words(search: Search, notes: Path) -> None:
    done = search("notes", "where is our vehicle?")
    assert done.code == 0, done.err
    place, excerpt = done.out.splitlines()[:2]
    path, _, score = place.partition("  ")
    assert path == os.path.join("notes", "car.txt") + ":1" and float(score) > 0.3
    assert "level four" in excerpt
    assert "files: 3 new (3 passages" in done.err
    assert (notes / "notes" / INDEX / ".gitignore").exists()


def test_only_changes_are_read_again_and_json_has_everything(search: Search, notes: Path) -> None:
    search("notes", "anything")
    (notes / "notes" / "work" / "plan.txt").unlink()
    (notes / "notes" / "dog.txt").write_text("The vet sees our puppy on Friday.\n")
    done = search("notes", "--json", "-k", "2", "animal", "doctor")
    first, second = done.results
    assert json.loads(done.out)["query"] == "animal doctor"
    assert first.pop("score") > second["score"]
    text = "The vet sees our puppy on Friday."
    assert first == {
        "path": os.path.join("notes", "dog.txt"), "line": 1, "first_line": 1, "last_line": 1,
        "excerpt": text, "text": text,
    }  # fmt: skip
    assert "files: 1 new, 1 removed (1 passage read" in done.err
    again = search("notes", "--json", "animal doctor")
    assert again.err == "" and again.results[0]["text"] == text


def test_another_model_or_a_damaged_index_is_told_and_built_anew(
    search: Search, notes: Path
) -> None:
    search("notes", "x", "--model", str(MINILM))
    other = search("notes", "our car", "--json", "--embedding-model", str(MINILM_Q8_0))
    assert "made with another model; it is built anew" in other.err
    assert other.results[0]["path"].endswith("car.txt")
    (notes / "notes" / INDEX / "passages.sqlite").write_bytes(b"x" * 4096)
    damaged = search("notes", "our car", "--json", "--model", str(MINILM_Q8_0))
    assert "the index is damaged; it is built anew" in damaged.err
    assert damaged.results == other.results
    assert search("notes", "our car", "--model", "minilm").err.count("built anew") == 1
    rebuilt = search("notes", "our car", "--json", "--rebuild", "--model", str(MINILM_Q8_0))
    assert "files: 3 new" in rebuilt.err and rebuilt.results == other.results


def test_results_can_be_narrowed_and_none_is_said(search: Search, notes: Path) -> None:
    only = search("notes", "--json", "--glob", "*.md", "car").results
    assert [result["path"] for result in only] == [os.path.join("notes", "food.md")]
    done = search("notes", "--min-score", "0.95", "car")
    assert (done.code, done.out) == (0, "")
    assert "Nothing is that similar; try a --min-score below 0.95." in done.err
    done = search("notes", "--glob", "*.rst", "car")
    assert "No text in notes is in *.rst." in done.err
    (notes / "empty").mkdir()
    assert "There is no text in empty." in search("empty", "car").err


def test_a_folder_that_cannot_be_written_has_its_index_in_the_cache(
    search: Search, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notes / "notes" / INDEX).write_text("in the way")
    for name in ("XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(notes / "user"))
    done = search("notes", "--json", "our car")
    assert done.results[0]["path"].endswith("car.txt")
    assert f"notes cannot be written to; its index is kept in {notes / 'user'}" in done.err


def test_an_index_that_cannot_be_kept_is_one_line(search: Search, notes: Path) -> None:
    (notes / "notes" / INDEX / "passages.sqlite").mkdir(parents=True)
    done = search("notes", "our car")
    assert done.code == 2 and "the index cannot be kept" in done.err.splitlines()[-1]


def test_who_waits_at_a_terminal_sees_how_far_it_is(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    done = search("notes", "our car")
    assert "reading" in done.err and "100%" in done.err
    assert "reading" not in search("notes", "our car").err


def test_two_searches_of_one_folder_take_turns(search: Search, notes: Path) -> None:
    search("notes", "x")
    lock = filelock.FileLock(notes / "notes" / INDEX / "lock")
    with lock:
        second = subprocess.Popen(
            [sys.executable, "-m", "ferrum_local", "search", "notes", "our car"],
            cwd=notes, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert second.stderr is not None
        assert "another search reads this folder" in second.stderr.readline()
        assert second.poll() is None
    out, _ = second.communicate(timeout=60)
    assert second.returncode == 0 and "car.txt" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("missing", "x"), "missing"),
        (("notes",), "QUERY"),
        (("notes", " "), "QUERY is empty"),
        (("notes", "x", "--model", "missing.gguf"), "no such file"),
        (("notes", "word " * 600), "602 tokens"),
        (("notes", "x", "-k", "0"), "--top"),
        (("notes", "x", "--url", "ftp://localhost"), "expected http://HOST:PORT"),
        (("notes", "x", "--url", "http://127.0.0.1:9"), "Nothing listens at"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_done_is_one_line(
    search: Search, arguments: tuple[str, ...], reason: str
) -> None:
    done = search(*arguments)
    errors = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert done.code in (1, 2)
    assert len(errors) == 1 and reason in errors[0], done.err
    assert "Traceback" not in done.err


def test_a_running_server_can_make_the_vectors(
    search: Search, embedding_server: RunningServer
) -> None:
    url = embedding_server.url
    first = search("notes", "--json", "--url", url, "where is our vehicle?").results
    assert first[0]["path"].endswith("car.txt")
    again = search("notes", "--json", "--url", f"{url}/v1/", "--model", "minilm", "soup")
    assert again.err == "" and again.results[0]["path"].endswith("food.md")
    unknown = search("notes", "--url", url, "--model", "gpt-9", "x")
    assert unknown.code == 1 and "minilm" in unknown.err


def test_ten_questions_find_the_right_page_of_the_docs(tmp_path: Path) -> None:
    for page in sorted(set(QUESTIONS.values())):
        shutil.copy(ROOT / "docs" / page, tmp_path)
    index = tmp_path / INDEX
    index.mkdir()
    with open_vectors(None, None) as vectors:
        embedder = FolderEmbedder(vectors)
        asked = {question: embedder.embed_query(question) for question in QUESTIONS}
        store = Store(index, embedder.identity, len(next(iter(asked.values()))))
        update(store, tmp_path, PathFilter(), embedder, now_ns=time.time_ns())
        first = {
            question: find(store, question, vector, PathFilter(), top=1)[0].path
            for question, vector in asked.items()
        }
        store.close()
    assert first == QUESTIONS
