"""The benchmark of embeddings runs; what it finds is for a quiet machine to say."""

from __future__ import annotations

import pytest

import bench_embeddings
from tests.conftest import MINILM


def test_texts_are_short_and_the_same_for_every_side() -> None:
    texts = bench_embeddings.short_texts(50, seed=1)
    assert texts == bench_embeddings.short_texts(50, seed=1)
    assert texts != bench_embeddings.short_texts(50, seed=2)
    assert all(5 <= len(text.split()) <= 16 for text in texts)


def test_it_measures_servers_and_the_bare_loop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench_embeddings.ROOT)
    if not MINILM.is_file():
        pytest.skip("all-MiniLM-L6-v2 is not here: run `make setup`")
    peer = bench_embeddings.OURS_CMD.format(python=bench_embeddings.sys.executable, null="")
    peer = peer.replace("--config", "--slots 1")
    arguments = ["--repeats", "1", "--batch", "8", "--clients", "4", "--peer-cmd", f"itself={peer}"]
    assert bench_embeddings.main(arguments) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "texts/s" in line]
    assert [row.split(" | ")[2] for row in rows] == ["bare loop", "itself", "itself"]


def test_a_server_that_does_not_start_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_embeddings.main(["--repeats", "1", "--model", "missing.gguf"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
