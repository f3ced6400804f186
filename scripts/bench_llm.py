"""Measure ferrum-local through HTTP beside a bare llama.cpp loop and other servers.

Prints a Markdown table of figures, ratios and targets; ``--json`` writes every measured value.
``docs/benchmarks.md`` says what each scenario does and how to build a server to compare with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import psutil

from bench import behaviour, drafts, speed, structured
from bench.baseline import Baseline
from bench.http_client import BenchError, Poller
from bench.lab import QUICK, Lab, Scenario, Sizes, say
from bench.report import Row, fact_list, table
from bench.servers import OURS, Server, ServerOptions, attach

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SCENARIOS: dict[str, Scenario] = {
    "start": behaviour.start,  # first: it wants the machine for itself
    "single": speed.single,
    "streams": speed.streams,
    "gain": speed.gain,
    "shared": speed.shared,
    "schema": structured.schema,
    "speculation": drafts.speculation,
    "stall": behaviour.stall,
    "cancel": behaviour.cancel,
    "multiturn": behaviour.multiturn,
    "idle": behaviour.idle,
    "memory": behaviour.memory,
}
ALONE = {"start", "memory", "speculation"}  # these start their own servers
BUSY_LOAD = 0.3  # runnable processes per core


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", type=scenario_names, default=list(SCENARIOS), metavar="NAMES",
        help=f"some of {','.join(SCENARIOS)}")  # fmt: skip
    add("--peer", type=named, action="append", default=[], metavar="NAME=URL",
        help="another OpenAI-compatible server that runs already")  # fmt: skip
    add("--peer-cmd", type=named, action="append", default=[], metavar="NAME=COMMAND",
        help="another server to start and stop; {port}, {model}, {threads}, {slots}, {ctx_size} "
        "and {ctx_total} are filled in")  # fmt: skip
    add("--model", type=Path, default=MODEL, help="GGUF file [%(default)s]")
    add("--ctx-size", type=int, default=2048, help="tokens of one slot [%(default)s]")
    add("--slots", type=int, default=8, help="[%(default)s]")
    add("--threads", type=int, default=n_cores(), help="[%(default)s]")
    add("--serve-args", type=shlex.split, default=[], metavar="ARGS",
        help="further flags for `ferrum-local serve`")  # fmt: skip
    add("--temperature", type=float, default=0.0, help="[%(default)s]")
    add("--repeats", type=int, default=None, help=f"[{Sizes.repeats}]")
    add("--quick", action="store_true", help="tiny sizes: shows that all works, measures nothing")
    add("--json", type=Path, metavar="PATH", help="write every measured value")
    parsed = parser.parse_args(arguments)
    names = [name for name, _ in (*parsed.peer, *parsed.peer_cmd)]
    if len({OURS, *names}) != len(names) + 1:
        parser.error(f"peers need names of their own, other than {OURS}")
    if not parsed.model.is_file():
        parser.error(f"{parsed.model} is not there: `make setup` fetches the starter model")
    return parsed


def scenario_names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {','.join(SCENARIOS)}")
    return [name for name in SCENARIOS if name in names]


def named(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def n_cores() -> int:
    """Physical cores that this process may use, as the server counts them."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))


async def run(arguments: argparse.Namespace, lab: Lab) -> list[Row]:
    """The scenarios, one after the other."""
    rows: list[Row] = []
    try:
        for number, name in enumerate(arguments.only, 1):
            if name not in ALONE and not lab.servers:
                await start_servers(arguments, lab)
            began_s = time.perf_counter()
            say(f"[{number}/{len(arguments.only)}] {name} …")
            try:
                rows += await SCENARIOS[name](lab)
            except BenchError as exc:  # the others are worth their time all the same
                say(f"    failed: {exc}")
                lab.failures[name] = str(exc)
            say(f"    {time.perf_counter() - began_s:.0f} s")
    finally:
        lab.stop()
    return rows


async def start_servers(arguments: argparse.Namespace, lab: Lab) -> None:
    lab.servers.append(lab.start_ours())
    for name in lab.peer_commands:
        lab.servers.append(await lab.start_peer(name))
    for name, url in arguments.peer:
        lab.servers.append(await attach(name, url))
    for server in lab.servers:
        await lab.warm_up(server)
    for peer in lab.peers:
        lab.facts[f"{peer.name} says"] = await build_of(peer)


# -- facts ----------------------------------------------------------------------------------


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_revision() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    done = subprocess.run(
        [git, "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"


async def build_of(peer: Server) -> str:
    """Its own words about its build (llama-server: ``/props``)."""
    poller = Poller(peer.address)
    status, body = await poller.get("/props")
    poller.close()
    return f"build {json.loads(body).get('build_info')}" if status == 200 else "nothing"


def machine_facts(arguments: argparse.Namespace, described: dict[str, str]) -> dict[str, str]:
    sys.path.append(str(ROOT))  # a clone that is not installed is measured as it is
    from ferrum_local import __version__

    options = f"{arguments.threads} threads, {arguments.slots} slots x {arguments.ctx_size} tokens"
    facts = {
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{cpu_name()}, {n_cores()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()} "
        f"{platform.machine()}",
        "ferrum-local": f"{__version__} ({git_revision()}), Python {platform.python_version()}",
        "llama-cpp-python": f"{described['llama_cpp_python']} ({described['system'].strip(' |')})",
        "model": f"{arguments.model.name} ({described['model']})",
        "sizes": options + (f", temperature {arguments.temperature:g}"),
    }
    for name, command in arguments.peer_cmd:
        program = shlex.split(command)[0]
        facts[f"started {name}"] = f"`{command.replace(program, Path(program).name, 1)}`"
    return facts


def warn_if_busy() -> None:
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY_LOAD * n_cores():
        say(f"Warning: the machine is busy (load {os.getloadavg()[0]:.1f}); figures mean little.")


# -- main -----------------------------------------------------------------------------------


async def measure(arguments: argparse.Namespace, logs: Path) -> dict[str, object]:
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.repeats:
        sizes = Sizes(**{**vars(sizes), "repeats": arguments.repeats})
    options = ServerOptions(
        arguments.model.resolve(), arguments.ctx_size, arguments.slots, arguments.threads
    )
    began_s, cpu_before_s = time.perf_counter(), time.process_time()
    with Baseline(
        options.model,
        ctx_size=options.ctx_size,
        slots=options.slots,
        threads=options.threads,
        log=logs / "bare-loop.log",
    ) as baseline:
        lab = Lab(
            options=options,
            sizes=sizes,
            peer_commands=dict(arguments.peer_cmd),
            serve_args=arguments.serve_args,
            temperature=arguments.temperature,
            logs=logs,
            baseline=baseline,
        )
        facts = machine_facts(arguments, baseline.describe())
        rows = await run(arguments, lab)
    facts.update(lab.facts)
    facts.update({f"**not measured**: {name}": why for name, why in lab.failures.items()})
    share = (time.process_time() - cpu_before_s) / (time.perf_counter() - began_s)
    facts["load generator"] = f"{100 * share:.1f} % of one core"
    if arguments.quick:
        facts["sizes"] += "; --quick: too small to mean anything"
    return {
        "facts": facts,
        "sizes": vars(sizes),
        "rows": [
            {**vars(row), "target": str(row.target or ""), "verdict": row.verdict.strip("*")}
            for row in rows
        ],
        "measured": lab.raw,
        "failures": lab.failures,
        "markdown": f"{fact_list(facts)}\n\n{table(rows)}\n",
    }


def main() -> int:
    arguments = parse_arguments()
    warn_if_busy()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, as Ctrl-C
    with tempfile.TemporaryDirectory(prefix="bench-llm-") as logs:
        try:
            result = asyncio.run(measure(arguments, Path(logs)))
        except BenchError as exc:
            print(f"bench_llm: {exc}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print(result.pop("markdown"), end="")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
