"""``ferrum-local search`` as people run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import filelock
import pytest

from tests.conftest import MINILM, MINILM_Q8_0, ROOT, RunningServer

INDEX = ".ferrum-search"
# What people ask who have just installed it, and the page of the docs that says it.
QUESTIONS = {
    "How do I build it for my graphics card?": ("install.md",),
    "How does an Electron app start and stop the server?": ("sidecar.md",),
    "under which licence are the libraries that it uses?": ("dependencies.md",),
    "create subtitles for a recording": ("speech.md", "api.md"),
    "which environment variable sets the port?": ("configuration.md",),
    "which thread runs the model and how are requests queued?": ("architecture.md",),
    "how many tokens per second does it make compared to llama-server?": ("benchmarks.md",),
    "order documents by relevance to a query": ("api.md",),
    "exit code when a model file is damaged": ("configuration.md", "sidecar.md"),
    "choose another voice for reading text aloud": ("speech.md", "api.md", "configuration.md"),
}


def search(
    directory: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")}
    return subprocess.run(
        [sys.executable, "-m", "ferrum_local", "search", *arguments],
        cwd=directory,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **(env or {})},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def found(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return results


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "car.txt").write_text("Errands.\n\nWe parked the car on level four, near the lift.\n")
    (folder / "food.md").write_text("# Dinner\n\nTomato soup needs basil and a little cream.\n")
    (folder / "work").mkdir()
    (folder / "work" / "plan.txt").write_text("The release is planned for the end of March.\n")
    return tmp_path


def test_a_question_finds_the_file_the_line_and_the_words(notes: Path) -> None:
    done = search(notes, "notes", "where is our vehicle?")
    assert done.returncode == 0, done.stderr
    place, excerpt = done.stdout.splitlines()[:2]
    path, _, score = place.partition("  ")
    assert path == os.path.join("notes", "car.txt") + ":1" and float(score) > 0.3
    assert "level four" in excerpt
    assert "files: 3 new (3 passages" in done.stderr
    assert (notes / "notes" / INDEX / ".gitignore").exists()


def test_only_changes_are_read_again_and_json_has_everything(notes: Path) -> None:
    search(notes, "notes", "anything")
    (notes / "notes" / "work" / "plan.txt").unlink()
    (notes / "notes" / "dog.txt").write_text("The vet sees our puppy on Friday.\n")
    done = search(notes, "notes", "--json", "-k", "2", "animal", "doctor")
    first, second = found(done)
    assert json.loads(done.stdout)["query"] == "animal doctor"
    assert first.pop("score") > second["score"]
    text = "The vet sees our puppy on Friday."
    assert first == {
        "path": os.path.join("notes", "dog.txt"), "line": 1, "first_line": 1, "last_line": 1,
        "excerpt": text, "text": text,
    }  # fmt: skip
    assert "files: 1 new, 1 removed (1 passage read" in done.stderr
    again = search(notes, "notes", "--json", "animal doctor")
    assert again.stderr == "" and found(again)[0]["text"] == text


def test_another_model_or_a_damaged_index_is_told_and_built_anew(notes: Path) -> None:
    search(notes, "notes", "x", "--model", str(MINILM))
    other = search(notes, "notes", "our car", "--json", "--embedding-model", str(MINILM_Q8_0))
    assert "made with another model; it is built anew" in other.stderr
    assert found(other)[0]["path"].endswith("car.txt")
    (notes / "notes" / INDEX / "passages.sqlite").write_bytes(b"x" * 4096)
    damaged = search(notes, "notes", "our car", "--json", "--model", str(MINILM_Q8_0))
    assert "the index is damaged; it is built anew" in damaged.stderr
    assert found(damaged) == found(other)
    rebuilt = search(notes, "notes", "our car", "--json", "--rebuild", "--model", str(MINILM_Q8_0))
    assert "files: 3 new" in rebuilt.stderr and found(rebuilt) == found(other)


def test_results_can_be_narrowed_and_none_is_said(notes: Path) -> None:
    only = found(search(notes, "notes", "--json", "--glob", "*.md", "car"))
    assert [result["path"] for result in only] == [os.path.join("notes", "food.md")]
    done = search(notes, "notes", "--min-score", "0.95", "car")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing is that similar; try a --min-score below 0.95." in done.stderr
    done = search(notes, "notes", "--glob", "*.rst", "car")
    assert "No text in notes is in *.rst." in done.stderr
    (notes / "empty").mkdir()
    assert "There is no text in empty." in search(notes, "empty", "car").stderr


def test_a_folder_that_cannot_be_written_has_its_index_in_the_cache(notes: Path) -> None:
    (notes / "notes" / INDEX).write_text("in the way")
    env = {"XDG_CACHE_HOME": str(notes / "cache"), "HOME": str(notes), "LOCALAPPDATA": str(notes)}
    done = search(notes, "notes", "--json", "our car", env=env)
    assert found(done)[0]["path"].endswith("car.txt")
    assert "notes cannot be written to; its index is kept in " in done.stderr


def test_two_searches_of_one_folder_take_turns(notes: Path) -> None:
    search(notes, "notes", "x")
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
        (("notes", "x", "--url", "localhost:8000"), "expected the address of a server"),
        (("notes", "x", "--url", "http://127.0.0.1:9"), "no server that answers"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_done_is_one_line(
    notes: Path, arguments: tuple[str, ...], reason: str
) -> None:
    done = search(notes, *arguments)
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert done.returncode in (1, 2)
    assert len(errors) == 1 and reason in errors[0], done.stderr
    assert "Traceback" not in done.stderr


def test_a_running_server_can_make_the_vectors(
    notes: Path, embedding_server: RunningServer
) -> None:
    url = embedding_server.url
    first = found(search(notes, "notes", "--json", "--url", url, "where is our vehicle?"))
    assert first[0]["path"].endswith("car.txt")
    again = search(notes, "notes", "--json", "--url", f"{url}/v1/", "--model", "minilm", "soup")
    assert again.stderr == "" and found(again)[0]["path"].endswith("food.md")
    unknown = search(notes, "notes", "--url", url, "--model", "gpt-9", "x")
    assert unknown.returncode == 1 and "minilm" in unknown.stderr


def test_ten_questions_find_the_right_page_of_the_docs(
    tmp_path: Path, embedding_server: RunningServer
) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    wrong = {}
    for question, pages in QUESTIONS.items():
        results = found(search(tmp_path, "docs", "--json", "--url", embedding_server.url, question))
        if os.path.basename(results[0]["path"]) not in pages:
            wrong[question] = [os.path.basename(result["path"]) for result in results]
    assert not wrong
