"""Ask a server for answers to twelve JSON schemas and validate each one.

Prints a line for each schema; the exit code is 1 if any answer is not valid. Without ``--url``
it starts ferrum-local with the starter model. Needs the ``dev`` extra.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import jsonschema_rs
import openai

from bench.servers import ServerOptions, start_ours
from schema_cases import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
AT_ONCE = 8  # answers of one request; the server decodes them together
MAX_TOKENS = 400


def faults_of(text: str, finish_reason: str | None, schema: dict[str, object]) -> list[str]:
    """Why an answer does not hold; empty when it does."""
    if finish_reason != "stop":
        return [f"finish_reason is {finish_reason}: {text[:80]}"]
    try:
        value = json.loads(text)
    except ValueError as exc:
        return [f"no JSON ({exc}): {text[:80]}"]
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    return [f"{error.message}: {text[:80]}" for error in validator.iter_errors(value)]


def ask(
    client: openai.OpenAI, schema: dict[str, object], *, n: int, seed: int, temperature: float
) -> list[str]:
    """Faults of ``n`` answers to one schema."""
    reply = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Invent an example record. Answer in JSON."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "record", "strict": True, "schema": schema},
        },
        n=n,
        seed=seed,
        temperature=temperature,
        max_tokens=MAX_TOKENS,
    )
    return [
        fault
        for choice in reply.choices
        for fault in faults_of(choice.message.content or "", choice.finish_reason, schema)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running server; default: start one")
    parser.add_argument("--answers", type=int, default=20, help="for each schema [%(default)s]")
    parser.add_argument("--temperature", type=float, default=1.0, help="[%(default)s]")
    arguments = parser.parse_args()
    n_bad = 0
    with ExitStack() as held:
        url = arguments.url
        if url is None:
            log = Path(held.enter_context(tempfile.TemporaryDirectory())) / "server.log"
            server = start_ours(ServerOptions(MODEL, 1024, AT_ONCE, 2), log, [])
            held.callback(server.stop)
            url = f"http://{server.address.host}:{server.address.port}"
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600, max_retries=0)
        for name, schema in SCHEMAS.items():
            began_s = time.perf_counter()
            faults: list[str] = []
            for first in range(0, arguments.answers, AT_ONCE):
                n = min(AT_ONCE, arguments.answers - first)
                faults += ask(client, schema, n=n, seed=first, temperature=arguments.temperature)
            n_bad += len(faults)
            took_s = time.perf_counter() - began_s
            print(f"{name:22} {arguments.answers - len(faults)}/{arguments.answers} {took_s:.1f} s")
            for fault in faults:
                print(f"    {fault}")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
