"""The servers that are measured: started and stopped, or only talked to; their memory and CPU."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from bench.http_client import Address, BenchError, Poller

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.005
OURS = "ferrum-local"
RUNNING_SERIES = "ferrum_running_sequences{"
STEPS_SERIES = "ferrum_steps_total{"


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The URL of a server of our own with these arguments, on a free port.

    :raises SystemExit: it did not start.
    """
    command = [sys.executable, "-m", "ferrum_local", "serve", "--port", "0", "--announce", "json"]
    with subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the server did not start; run `make setup`")
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """What every server is told alike."""

    model: Path
    ctx_size: int  # tokens of one slot
    slots: int
    threads: int


@dataclasses.dataclass
class Server:
    """A server that is ready. ``process`` is None when it was not started by this program."""

    name: str
    address: Address
    model: str = ""
    process: psutil.Process | None = None
    popen: subprocess.Popen[bytes] | None = None
    start_s: float = 0.0  # from the start of the process to ready

    @property
    def is_ours(self) -> bool:
        return self.name == OURS

    def processes(self) -> list[psutil.Process]:
        if self.process is None:
            raise BenchError(f"{self.name} was not started by this program")
        return [self.process, *self.process.children(recursive=True)]

    def rss_bytes(self) -> int:
        """Resident memory of all its processes; pages they share count for each."""
        return sum(process.memory_info().rss for process in self.processes())

    def cpu_s(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return float(sum(t.user + t.system for t in times))

    async def running(self, poller: Poller) -> int | None:
        """Slots at work right now; None when this server does not tell."""
        if self.is_ours:
            return round(await self._series(poller, RUNNING_SERIES))
        status, body = await poller.get("/slots")  # llama-server
        if status != 200:
            return None
        return sum(bool(slot.get("is_processing")) for slot in json.loads(body))

    async def steps(self, poller: Poller) -> float:
        """Decode steps so far (ours only)."""
        return await self._series(poller, STEPS_SERIES)

    async def _series(self, poller: Poller, name: str) -> float:
        _, body = await poller.get("/metrics")
        return read_series(body.decode(), name)

    async def wait_idle(self) -> None:
        """Until no slot is at work, so that one measurement does not disturb the next."""
        poller = Poller(self.address)
        deadline = time.perf_counter() + START_TIMEOUT_S
        while await self.running(poller):
            if time.perf_counter() > deadline:
                raise BenchError(f"{self.name} does not come to rest")
            await asyncio.sleep(0.05)
        poller.close()

    def stop(self) -> None:
        """End it if this program started it. Does nothing twice."""
        if self.popen is None or self.process is None:
            return
        children = self.process.children(recursive=True) if self.popen.poll() is None else []
        self.popen.terminate()
        try:
            self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for child in children:
                if child.is_running():
                    child.kill()
            self.popen.kill()
            self.popen.wait()
        self.popen = None


Start = Callable[[], "Server"]


def read_series(text: str, prefix: str) -> float:
    """Sum of the Prometheus samples whose line begins with ``prefix``."""
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(prefix)
    )


def start_ours(options: ServerOptions, log: Path, extra: list[str]) -> Server:
    """Start ferrum-local, without any configuration of the user's."""
    command = [sys.executable, "-m", "ferrum_local", "serve", "--config", os.devnull]
    command += ["--model", str(options.model), "--ctx-size", str(options.ctx_size)]
    command += ["--slots", str(options.slots), "--threads", str(options.threads)]
    command += ["--port", "0", "--announce", "json", "--log-level", "warning", *extra]
    env = {k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")}
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    started = time.perf_counter()
    popen = _spawn(command, log, stdout=subprocess.PIPE, env=env)
    assert popen.stdout is not None
    line = popen.stdout.readline()
    if not line:
        raise BenchError(f"{OURS} did not start:\n{_tail(log)}")
    ready: dict[str, Any] = json.loads(line)
    return Server(
        name=OURS,
        address=Address("127.0.0.1", int(ready["port"])),
        model=str(ready["models"][0]),
        process=psutil.Process(popen.pid),
        popen=popen,
        start_s=time.perf_counter() - started,
    )


async def start_peer(name: str, command: str, options: ServerOptions, log: Path) -> Server:
    """Start another server and wait until ``GET /health`` (or ``/v1/models``) answers 200.

    :param command: split as a shell would; ``{port}``, ``{model}``, ``{threads}``, ``{slots}``,
        ``{ctx_size}`` (one slot) and ``{ctx_total}`` are filled in.
    """
    address = Address("127.0.0.1", _free_port())
    fields = {
        "port": address.port,
        "model": options.model,
        "threads": options.threads,
        "slots": options.slots,
        "ctx_size": options.ctx_size,
        "ctx_total": options.ctx_size * options.slots,
    }
    try:
        arguments = [word.format(**fields) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as exc:
        raise BenchError(f"--peer-cmd {name}: cannot fill in {exc}") from exc
    started = time.perf_counter()
    popen = _spawn(arguments, log, stdout=subprocess.DEVNULL, env=None)
    server = Server(name=name, address=address, process=psutil.Process(popen.pid), popen=popen)
    try:
        while not await _is_ready(address):
            if popen.poll() is not None:
                raise BenchError(f"{name} ended with code {popen.returncode}:\n{_tail(log)}")
            if time.perf_counter() - started > START_TIMEOUT_S:
                raise BenchError(f"{name} is not ready after {START_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)
        server.start_s = time.perf_counter() - started
        server.model = await _first_model(address)
    except BaseException:
        server.stop()
        raise
    return server


async def attach(name: str, url: str) -> Server:
    """A server that runs already, as ``http://127.0.0.1:8080``."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise BenchError(f"--peer {name}: {url!r} is no http:// address")
    address = Address(parts.hostname, parts.port or 80)
    return Server(name=name, address=address, model=await _first_model(address))


async def _first_model(address: Address) -> str:
    poller = Poller(address)
    status, body = await poller.get("/v1/models")
    poller.close()
    if status != 200:
        raise BenchError(f"{address.host}:{address.port}/v1/models answered {status}")
    return str(json.loads(body)["data"][0]["id"])


async def _is_ready(address: Address) -> bool:
    poller = Poller(address)
    try:
        status, _ = await poller.get("/health")
        if status == 404:
            status, _ = await poller.get("/v1/models")
    except BenchError:  # it does not listen yet
        return False
    finally:
        poller.close()
    return status == 200


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _spawn(
    command: list[str], log: Path, *, stdout: int, env: dict[str, str] | None
) -> subprocess.Popen[bytes]:
    with log.open("ab") as stderr:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env
            )
        except OSError as exc:
            raise BenchError(f"cannot start {command[0]}: {exc.strerror}") from exc


def _tail(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-800:]
