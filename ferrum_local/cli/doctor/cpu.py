"""What this CPU can compute, and whether a build of llama.cpp asks for more."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# llama.cpp's name of an instruction set → the kernel's. What is not here is no instruction set,
# or one that llama.cpp looks up itself before it uses it.
_KERNEL_NAMES = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "FP16_VA": "asimdhp",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
    "SME": "sme",
}
# IsProcessorFeaturePresent's numbers (winnt.h) for what it can be asked.
_WINDOWS_FEATURES = {13: "pni", 36: "ssse3", 39: "avx", 40: "avx2", 41: "avx512f"}
# sysctl's names on Macs with Intel CPUs.
_MAC_NAMES = {"SSE3": "pni", "AVX1.0": "avx"}


def missing_instructions(features: Iterable[str], flags: frozenset[str]) -> tuple[str, ...]:
    """Those of llama.cpp's ``features`` that a CPU with these ``flags`` lacks."""
    return tuple(
        name for name in features if name in _KERNEL_NAMES and _KERNEL_NAMES[name] not in flags
    )


def cmake_arguments(missing: Iterable[str]) -> str:
    """For a build without them; when none are named, for one with SSE alone."""
    left_out = tuple(missing) or ("AVX", "AVX2", "FMA", "F16C", "BMI2")
    return " ".join(["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=OFF" for name in left_out)])


def cpu_flags() -> frozenset[str] | None:
    """The kernel's names of what the CPU can; None where the system does not tell."""
    if CPUINFO.exists():
        return flags_of_cpuinfo(CPUINFO.read_text("utf-8", "replace"))
    if sys.platform == "win32":
        import ctypes

        return flags_of_windows(ctypes.windll.kernel32.IsProcessorFeaturePresent)
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        command = ["sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        words = done.stdout.split()
        return frozenset(_MAC_NAMES.get(word, word.lower()) for word in words) or None
    return None


def flags_of_windows(is_present: Callable[[int], int]) -> frozenset[str]:
    """What Windows cannot be asked for counts as there: the models will show it."""
    absent = {name for number, name in _WINDOWS_FEATURES.items() if not is_present(number)}
    if {"avx", "avx2"} & absent:  # they came to CPUs together with AVX2
        absent |= {"fma", "f16c", "bmi2"}
    return frozenset(_KERNEL_NAMES.values()) - absent


def flags_of_cpuinfo(text: str) -> frozenset[str] | None:
    """Of the first core in ``/proc/cpuinfo``."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else None


def cpu_name() -> str:
    if CPUINFO.exists():
        found = re.search(
            r"^model name\s*:\s*(.+)$", CPUINFO.read_text("utf-8", "replace"), re.MULTILINE
        )
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()
