"""A server of the fuzzers' own: small, so that whatever they ask for is soon answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import MINILM, SMOLLM2, RunningServer, serve


@pytest.fixture(scope="package")
def target() -> Iterator[RunningServer]:
    """SmolLM2 with 4 slots of 128 tokens, MiniLM, and bodies of at most 1 MB."""
    yield from serve(
        "--model", f"smol={SMOLLM2}", "--ctx-size", "128", "--slots", "4", "--max-body-mb", "1",
        "--embedding-model", f"minilm={MINILM}",
    )  # fmt: skip
