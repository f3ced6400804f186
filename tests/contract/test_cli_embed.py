"""``ferrum-local embed`` as people run it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import MINILM, ROOT, SMOLLM2, RunningServer


def embed(directory: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ferrum_local", "embed", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def vectors(text: str) -> dict[str, list[float]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["text"]: line["embedding"] for line in lines}


def test_texts_files_and_lines_become_vectors_in_order(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note\nof two lines", "utf-8")
    (tmp_path / "lines.txt").write_text("first\n\nsecond – ü\n", "utf-8")
    done = embed(
        tmp_path, "hello", "world", "--file", "note.txt", "--lines", "lines.txt",
        "--out", "all.jsonl",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = vectors((tmp_path / "all.jsonl").read_text("utf-8"))
    assert list(found) == ["hello", "world", "a note\nof two lines", "first", "second – ü"]
    assert all(math.isclose(math.hypot(*v), 1.0, rel_tol=1e-5) for v in found.values())


def test_stdin_is_read_when_nothing_else_is_given(tmp_path: Path) -> None:
    done = embed(tmp_path, "--model", str(MINILM), stdin="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert list(vectors(done.stdout)) == ["one", "two"]


def test_an_npy_file_has_a_row_for_each_text(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(70)]
    done = embed(
        tmp_path, "--out", "all.npy", "--dimensions", "16", "--lines", "-",
        stdin="\n".join(texts),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = np.load(tmp_path / "all.npy")
    assert (rows.shape, rows.dtype) == ((70, 16), np.float32)
    assert [path.name for path in tmp_path.iterdir()] == ["all.npy"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "reason"),
    [
        ((), "", "no text"),
        (("a", " "), "", "text 2 is empty"),
        (("a", "--out", "x.csv"), "", "--out: expected a name that ends in .jsonl or .npy"),
        (("a", "--out", "no/such/x.npy"), "", "cannot be written"),
        (("--file", "missing.txt"), "", "missing.txt: cannot be read"),
        (("a", "--model", "missing.gguf"), "", "no such file"),
        (("word " * 600,), "", "602 tokens"),
        (("a", "--dimensions", "1000"), "", "384 numbers"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], stdin: str, reason: str
) -> None:
    done = embed(tmp_path, *arguments, stdin=stdin)
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert done.returncode in (1, 2)
    assert len(errors) == 1 and reason in errors[0], done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_chat_model_can_make_vectors_too(tmp_path: Path) -> None:
    done = embed(tmp_path, "hello", "--model", str(SMOLLM2))
    assert done.returncode == 0, done.stderr
    assert len(vectors(done.stdout)["hello"]) == 576


def test_a_running_server_makes_the_same_vectors(
    tmp_path: Path, embedding_server: RunningServer
) -> None:
    here = embed(tmp_path, "hello", "ünïcode", "--dimensions", "8")
    there = embed(
        tmp_path, "hello", "ünïcode", "--dimensions", "8", "--url", embedding_server.url,
        "--model", "text-embedding-3-small",
    )  # fmt: skip
    assert there.returncode == 0, there.stderr
    for text, vector in vectors(here.stdout).items():
        assert vectors(there.stdout)[text] == pytest.approx(vector, abs=1e-3)
    refused = embed(tmp_path, "hello", "--url", embedding_server.url, "--dimensions", "1000")
    assert refused.returncode == 1 and "384 numbers" in refused.stderr
