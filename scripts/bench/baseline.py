"""The other end of ``bare_loop.py``: starts it, asks it, ends it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.http_client import BenchError
from bench.stats import decode_rate

SCRIPT = Path(__file__).with_name("bare_loop.py")
FLASH_ATTN = ("on", "off")


@dataclasses.dataclass(frozen=True)
class SharedPrefill:
    seconds: float
    n_prefix: int
    n_suffixes: int


class Baseline:
    """A bare decode loop in a child process, asleep until it is asked."""

    def __init__(self, model: Path, *, ctx_size: int, slots: int, threads: int, log: Path) -> None:
        self._log = log
        sizes = ["--ctx-size", ctx_size, "--slots", slots, "--threads", threads]
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(model), *map(str, sizes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def __enter__(self) -> Baseline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()  # it ends at the end of its input
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def describe(self) -> dict[str, str]:
        """Model, version of llama-cpp-python and the CPU features of the build."""
        return {name: str(value) for name, value in self._ask("describe").items()}

    def count(self, text: str) -> int:
        """Tokens of ``text``."""
        return int(self._ask("count", text=text)["n_tokens"])

    def decode_rate(self, messages: list[dict[str, str]], n_tokens: int, flash_attn: str) -> float:
        """Tokens a second of one greedy sequence, counted as for the servers."""
        answer = self._ask("decode", messages=messages, n_tokens=n_tokens, flash_attn=flash_attn)
        return decode_rate(answer["times_s"], n_tokens)

    def shared_prefill(self, system: str, users: list[str], flash_attn: str) -> SharedPrefill:
        """One prefill of what the conversations share and one of all that follows it."""
        answer = self._ask("shared_prefill", system=system, users=users, flash_attn=flash_attn)
        return SharedPrefill(**answer)

    def _ask(self, command: str, **arguments: object) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(
                json.dumps({"command": command, **arguments}),
                file=self._process.stdin,
                flush=True,
            )
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = self._log.read_text("utf-8", "replace")[-500:]
            raise BenchError(f"the bare loop ended (code {self._process.wait()}):\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer
