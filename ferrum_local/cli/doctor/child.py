"""Runs a probe in a process of its own, so that what ends the process is a finding."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import msgspec

from ferrum_local.processes import helper_command

_PROBE = "ferrum_local.cli.doctor.probes:run"
ILLEGAL_INSTRUCTION = "illegal instruction"
_SIGNALS = {
    "SIGILL": ILLEGAL_INSTRUCTION,
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGABRT": "aborted",
    "SIGKILL": "killed, probably for want of memory",
}
_NT_STATUSES = {
    0xC000001D: ILLEGAL_INSTRUCTION,
    0xC0000005: "access violation",
    0xC0000135: "a library is missing",
    0xC0000409: "aborted",
}


class Outcome(msgspec.Struct, frozen=True):
    """``facts`` of a probe that went well, else ``error``. ``crash``: how the process ended, when
    native code ended it."""

    facts: dict[str, Any] = {}
    error: str | None = None
    crash: str | None = None


def run_probe(probe: str, path: str = "", *, timeout_s: float) -> Outcome:
    """:param probe: one of :data:`ferrum_local.cli.doctor.probes.PROBES`."""
    try:
        done = subprocess.run(
            helper_command(_PROBE, probe, path),
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(error=f"no answer within {timeout_s:g} s")
    crash = how_it_crashed(done.returncode)
    if crash is not None:
        said = _last_line(done.stderr)
        return Outcome(error=f"{crash}: {said}" if said else crash, crash=crash)
    try:
        facts = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = _last_line(done.stderr) or f"ended with code {done.returncode}"
        return Outcome(error=said)
    return Outcome(error=facts["error"]) if "error" in facts else Outcome(facts=facts)


def how_it_crashed(return_code: int, platform: str = sys.platform) -> str | None:
    """None: the process ended by itself."""
    if platform == "win32":
        code = return_code & 0xFFFFFFFF
        return (
            _NT_STATUSES.get(code, f"ended by Windows, 0x{code:08X}") if code >= 1 << 31 else None
        )
    if return_code >= 0:
        return None
    name = signal.Signals(-return_code).name
    return _SIGNALS.get(name, f"ended by {name}")


def _last_line(text: str) -> str:
    """What a program said last; of ggml's backtrace, what was asserted."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    asserted = [line for line in lines if "GGML_ASSERT" in line or "GGML_ABORT" in line]
    return (asserted or lines or [""])[-1]
