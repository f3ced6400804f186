"""Loads each model that it is told of and writes a few tokens: run in a process of its own.

``python -m tests.engine.damaged_models`` reads paths from stdin, and for each prints it before it
is loaded and what became of it after.
"""

from __future__ import annotations

import sys

from ferrum_local.errors import FerrumError
from ferrum_local.llm.runtime import LlmRuntime
from ferrum_local.types import InferenceRequest, LlmOptions, ModelSpec, SamplingParams

ANSWER_S = 60.0


def use(path: str) -> None:
    runtime = LlmRuntime(
        ModelSpec(id="damaged", path=path), LlmOptions(ctx_size=64, slots=1, threads=1)
    )
    try:
        generation = runtime.start(
            InferenceRequest(
                id="r",
                model_id="damaged",
                prompt="ab",
                sampling_params=SamplingParams(max_tokens=3),
            )
        )
        try:
            while generation.poll(ANSWER_S) is not None:
                pass
        except StopIteration:
            pass
    finally:
        runtime.close()


def main() -> None:
    for path in sys.stdin.read().split():
        print(path, flush=True)
        try:
            use(path)
        except FerrumError as error:
            print("refused:", error.message.replace("\n", " "), flush=True)
        else:
            print("works", flush=True)


if __name__ == "__main__":
    main()
