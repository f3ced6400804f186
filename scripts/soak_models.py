"""Swap models in and out of one server process, and watch its memory.

``python scripts/soak_models.py [--models 20] [--swaps 100]``: tiny models of several kinds, and
copies of the starter models if they are there, are loaded by name, asked, and freed again. Fails
if the last round of all takes over ``--growth-mb`` more memory than the second.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ferrum_local.engine.facade import LocalEngine  # noqa: E402
from ferrum_local.server.supervisor import WORKER_ENVIRONMENT  # noqa: E402
from ferrum_local.types import (  # noqa: E402
    EmbeddingRequest,
    InferenceRequest,
    LibraryOptions,
    LlmOptions,
    SamplingParams,
)
from tests.engine.tiny_bert import write_tiny_bert  # noqa: E402
from tests.engine.tiny_models import TINY_MODELS  # noqa: E402

MB = 1_000_000
REAL = ("SmolLM2-135M-Instruct.Q4_1.gguf", "all-minilm-l6-v2.q8_0.gguf")
OPTIONS = LlmOptions(ctx_size=256, slots=2, threads=1)


def write_library(directory: Path, n_models: int) -> None:
    """``n_models`` files: the real ones once, the rest tiny, of all kinds in turn."""
    real = [ROOT / "models" / name for name in REAL if (ROOT / "models" / name).exists()]
    for path in real[:n_models]:
        (directory / path.name).symlink_to(path.resolve())
    writers = list(TINY_MODELS.items())
    for number in range(n_models - len(real)):
        kind, write = writers[number % (len(writers) + 1)] if number % 5 < 4 else ("bert", None)
        path = directory / f"{kind}-{number:02d}.gguf"
        if write is None:
            write_tiny_bert(path, pooling="mean")
        else:
            write(path)


def ask(engine: LocalEngine, model_id: str, kind: str, number: int) -> None:
    if kind == "embedding":
        engine.embed(EmbeddingRequest(id=f"e{number}", model_id=model_id, inputs=("the cat",)))
        return
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    prompt = f"Number {number}: "
    request = InferenceRequest(
        id=f"r{number}", model_id=model_id, prompt=prompt, sampling_params=params
    )
    n_tokens = len(engine.infer(request).choices[0].token_ids)
    if n_tokens != params.max_tokens:
        raise SystemExit(f"{model_id}: {n_tokens} tokens")


def be_like_a_worker() -> None:
    """glibc reads its settings once, when a process starts: start again with a server's."""
    if not WORKER_ENVIRONMENT.items() <= os.environ.items():
        environment = {**os.environ, **WORKER_ENVIRONMENT}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> int:
    be_like_a_worker()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--growth-mb", type=float, default=20.0)
    options = parser.parse_args()
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        write_library(directory, options.models)
        engine = LocalEngine([], OPTIONS, library=LibraryOptions(directories=(place,)))
        engine.load()
        models = [(info.id, info.kind) for info in engine.known_models()]
        print(f"{len(models)} models registered", flush=True)
        rss_mb: list[float] = []
        started_s = time.monotonic()
        for number in range(options.swaps):
            model_id, kind = models[number % len(models)]
            ask(engine, model_id, kind, number)
            engine.unload_model(model_id)
            rss_mb.append(process.memory_info().rss / MB)
            if (number + 1) % 10 == 0:
                print(
                    f"{number + 1:4} swaps  {rss_mb[-1]:7.1f} MB  "
                    f"{threading.active_count()} Python threads, {process.num_threads()} threads, "
                    f"{process.num_fds() if hasattr(process, 'num_fds') else 0} files",
                    flush=True,
                )
        engine.close()
        took_s = time.monotonic() - started_s
    n = len(models)  # the first round brings in libraries and caches
    growth_mb = max(rss_mb[-n:]) - max(rss_mb[n : 2 * n], default=rss_mb[0])
    print(f"{took_s:.0f} s; {growth_mb:+.1f} MB from the second round to the last")
    return 0 if growth_mb <= options.growth_mb else 1


if __name__ == "__main__":
    sys.exit(main())
