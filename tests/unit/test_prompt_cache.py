"""The bounded store of evicted prefixes, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.llm.prompt_cache import DiskCache, PromptCache

A = list(range(100))
B = [*A[:80], *range(500, 540)]


def test_the_longest_shared_prefix_is_found() -> None:
    cache = PromptCache(1000)
    cache.store(A, b"a" * 100)
    cache.store(B, b"b" * 100)
    found = cache.find([*B, 1, 2], 64)
    assert found is not None
    assert (found.n_shared, found.tokens, found.state) == (120, B, b"b" * 100)
    assert cache.find([*A[:70], 999], 64) is not None
    assert cache.find([*A[:60], 999], 64) is None
    assert cache.find([7, 8, 9], 1) is None


def test_the_least_recently_used_goes_first() -> None:
    cache = PromptCache(250)
    cache.store([1] * 64, b"1" * 100)
    cache.store([2] * 64, b"2" * 100)
    assert cache.find([1] * 64, 64)
    cache.store([3] * 64, b"3" * 100)
    assert cache.find([2] * 64, 64) is None
    assert cache.find([1] * 64, 64)
    assert cache.find([3] * 64, 64)
    assert cache.n_bytes == 200


def test_a_longer_state_replaces_those_it_covers() -> None:
    cache = PromptCache(1000)
    cache.store(A[:70], b"short")
    cache.store(A, b"long")
    assert cache.n_bytes == 4
    cache.store(A[:80], b"covered")
    assert cache.n_bytes == 4


def test_a_recurrent_state_is_used_whole_or_not_at_all() -> None:
    cache = PromptCache(1000, max_cut_tokens=0)
    cache.store(A[:70], b"short")
    cache.store(A, b"long")
    assert cache.n_bytes == 9, "the longer one cannot stand in for the shorter"
    for prompt, n_shared in (([*A, 7, 8], 100), ([*A[:90], 7], 70), (A[:69], 0)):
        found = cache.find(prompt, 1)
        assert (found.n_shared if found else 0) == cache.shared_length(prompt) == n_shared
    cache.store(A, b"again")
    assert cache.n_bytes == 9


def test_a_state_longer_than_the_sliding_window_is_used_whole() -> None:
    cache = PromptCache(1000, max_cut_tokens=80)
    cache.store(A, b"long")
    assert cache.find([*A[:90], 7], 1) is None, "its first tokens were not saved"
    assert cache.find([*A, 7], 1) is not None
    cache.store(A[:80], b"short")
    found = cache.find([*A[:75], 7], 1)
    assert found is not None
    assert (found.n_shared, found.state) == (75, b"short")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=60))
def test_life_07_the_bound_is_kept_whatever_is_stored(entries: list[tuple[int, int]]) -> None:
    cache = PromptCache(100)
    for first, size in entries:
        cache.store([first, *range(size)], b"x" * size)
        assert cache.n_bytes <= 100


def test_a_state_larger_than_the_bound_is_not_kept() -> None:
    cache = PromptCache(10)
    cache.store(A, b"x" * 11)
    assert cache.find(A, 1) is None


def test_disk_survives_a_restart(tmp_path: Path) -> None:
    PromptCache(1000, DiskCache(tmp_path, "model-a", 10_000)).store(A, b"state")
    again = PromptCache(1000, DiskCache(tmp_path, "model-a", 10_000))
    found = again.find(A, 64)
    assert found is not None
    assert found.state == b"state"
    other = PromptCache(1000, DiskCache(tmp_path, "model-b", 10_000))
    assert other.find(A, 64) is None, "states of another model are not its own"


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "header"])
def test_a_corrupt_file_is_ignored_with_a_log_line(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    PromptCache(1000, DiskCache(tmp_path, "m", 10_000)).store(A, b"state" * 20)
    (path,) = tmp_path.glob("*.kv")
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[:-3]
    elif damage == "flip":
        data[-1] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:
        data[15] = 0xFF
    path.write_bytes(bytes(data))
    assert PromptCache(1000, DiskCache(tmp_path, "m", 10_000)).find(A, 1) is None
    assert path.name in caplog.text


def test_a_file_that_breaks_while_running_is_not_used(tmp_path: Path) -> None:
    cache = PromptCache(0, DiskCache(tmp_path, "m", 10_000))
    cache.store(A, b"state")
    assert cache.find(A, 64)
    (path,) = tmp_path.glob("*.kv")
    path.write_bytes(b"garbage")
    assert cache.find(A, 64) is None


def test_files_are_bounded_together(tmp_path: Path) -> None:
    cache = PromptCache(0, DiskCache(tmp_path, "m", 5000))
    for i in range(10):
        cache.store([i] * 64, bytes([i]) * 1000)
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 5000
    assert cache.find([9] * 64, 64)
    assert cache.find([0] * 64, 64) is None


def test_a_directory_that_cannot_be_written_costs_only_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCache(tmp_path / "cache", "m", 10_000)
    cache = PromptCache(1000, disk)
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("a file now")
    cache.store(A, b"state")
    assert cache.find(A, 64), "memory still has it"
    assert "cannot write" in caplog.text
