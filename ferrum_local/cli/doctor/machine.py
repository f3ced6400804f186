"""What the machine has left: memory, disk, and the port to listen on; and if settings are sound."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ferrum_local.cli.doctor.findings import Finding, ok, problem, warning
from ferrum_local.cli.found_models import IMAGE_EMBEDDING, SPEECH, TRANSCRIPTION
from ferrum_local.cli.tables import amount
from ferrum_local.errors import FerrumError

if TYPE_CHECKING:
    from ferrum_local.cli.found_models import FoundModel
    from ferrum_local.config import Resolved

GIB = 1 << 30
ANSWER_TIMEOUT_S = 3.0  # of what listens on the port
_MODEL_OVERHEAD = 1.2  # weights, and what an answer needs beside them


def settle(env: dict[str, str]) -> tuple[Resolved, Finding]:
    """The settings; where they cannot be used, the defaults, and what is wrong."""
    from ferrum_local.config import ConfigError, resolve

    try:
        resolved = resolve({}, env, cwd=Path.cwd())
    except ConfigError as error:
        defaults = resolve({}, {}, cwd=Path.cwd(), config=os.devnull)
        remedy = "correct it; `ferrum-local serve --print-config` shows all settings"
        return defaults, problem("settings", error.message, remedy)
    if resolved.notes:
        return resolved, warning("settings", "; ".join(resolved.notes), "rename or unset it")
    return resolved, ok("settings", resolved.config_file or "no file, so the defaults")


def check_memory(models: Sequence[FoundModel]) -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    what = f"{amount(memory.available)} of {amount(memory.total)} are free"
    needed = max((model.size_bytes for model in models), default=0) * _MODEL_OVERHEAD
    if memory.available < needed:
        largest = max(models, key=lambda model: model.size_bytes)
        what += f"; {largest.spec.id} alone needs about {amount(needed)}"
        return warning("memory", what, "close other programs, or take a smaller model")
    return ok("memory", what)


def check_disk(places: Sequence[Path], least_bytes: int = GIB) -> Finding:
    """Where models are kept; the first place that exists, or could."""
    place = next((place for place in places if place.is_dir()), Path.cwd())
    free = shutil.disk_usage(place).free
    if free < least_bytes:
        remedy = "make room: models are large, and so are uploads while they are worked on"
        return warning("disk", f"only {amount(free)} are free at {place}", remedy)
    return ok("disk", f"{amount(free)} are free at {place}")


def check_port(resolved: Resolved) -> Finding:
    from ferrum_local.cli.server_address import configured_url
    from ferrum_local.server.listener import PortInUse, bind
    from ferrum_local.server.unix_socket import BindError

    host, port = resolved.settings.host.strip("[]"), resolved.settings.port
    try:
        bind(host, port).close()
    except PortInUse as error:
        url = configured_url(resolved)
        if _is_ours(url):
            return ok("port", f"a ferrum-local listens at {url} (`ferrum-local ps` looks at it)")
        return problem("port", f"another program has {port} on {error.host}",
                       "stop it, or choose another with --port (0 takes any)")  # fmt: skip
    except BindError as error:
        return problem("port", error.message, "choose another --host or --port")
    return ok("port", f"{port} on {host} is free")


def _is_ours(url: str) -> bool:
    from ferrum_local.cli.client import ServerClient

    try:
        answer = ServerClient(url, answer_timeout_s=ANSWER_TIMEOUT_S).get("/")
    except FerrumError:
        return False
    return isinstance(answer, dict) and answer.get("name") == "ferrum-local"


def check_models(models: Sequence[FoundModel], *, timeout_s: float) -> Iterator[Finding]:
    """Each in a child: it loads, and answers."""
    from ferrum_local.cli.doctor.child import run_probe

    if not models:
        remedy = "`ferrum-local models pull` fetches some; --model PATH names one of your own"
        yield warning("models", "none were found", remedy)
    for model in models:
        topic = f"{model.kind} {model.spec.id}"
        if model.problem is not None:
            yield problem(topic, model.problem, "fetch it again, or take it away")
            continue
        outcome = run_probe(model.kind, model.spec.path, timeout_s=timeout_s)
        if outcome.error is not None:
            what = f"{model.spec.path}: {outcome.error}"
            yield problem(topic, what, _remedy(model.kind, outcome.crash))
            continue
        facts = outcome.facts
        yield ok(topic, f"loads in {facts['load_s']:.1f} s, answers in {facts['answer_s']:.1f} s")


_LIBRARIES = {
    TRANSCRIPTION: "faster-whisper ctranslate2",
    SPEECH: "piper-tts onnxruntime",
    IMAGE_EMBEDDING: "onnxruntime tokenizers",
}


def _remedy(kind: str, crash: str | None) -> str:
    from ferrum_local.cli.doctor.child import ILLEGAL_INSTRUCTION
    from ferrum_local.cli.doctor.installation import install_remedy, rebuild_remedy

    library = _LIBRARIES.get(kind)
    if library is not None:
        again = f"pip install --force-reinstall --no-cache-dir {library}"
    else:
        again = rebuild_remedy(()) if crash == ILLEGAL_INSTRUCTION else install_remedy()
    return again if crash else f"fetch it again, or take another; if others fail too: {again}"
