"""A server beside the ordinary one: so small that its limits are soon reached."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.conftest import MINILM, SMOLLM2, RunningServer, serve

SMALL_CTX = 200
SMALL_MAX_QUEUE = 1


@pytest.fixture(scope="session")
def small_server() -> Iterator[RunningServer]:
    """SmolLM2 with one slot of 200 tokens and room for one request to wait."""
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--ctx-size", str(SMALL_CTX), "--slots", "1",
        "--max-queue", str(SMALL_MAX_QUEUE),
    )  # fmt: skip


@pytest.fixture(scope="session")
def embedding_server() -> Iterator[RunningServer]:
    """MiniLM alone, also under a name of OpenAI's."""
    yield from serve(
        "--embedding-model", f"minilm={MINILM}", "--alias", "text-embedding-3-small=minilm"
    )


def worker_pids(server: RunningServer) -> list[int]:
    """The processes that do the work; another one after a crash."""
    return [child.pid for child in psutil.Process(server.pid).children()]


@pytest.fixture
def same_worker(server: RunningServer) -> Iterator[None]:
    """The test must leave the process alive: a crashed one would have been replaced."""
    before = worker_pids(server)
    yield
    assert worker_pids(server) == before
