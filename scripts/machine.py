"""What this machine is, and which Python and C++ compiler it has.

Standard library only, Python 3.8 syntax: it runs before anything is installed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence  # noqa: UP035 - Python 3.8

PREBUILT_INDEX = "https://abetlen.github.io/llama-cpp-python/whl"
PYTHON_RANGE = ((3, 10), (3, 13))  # as requires-python in pyproject.toml
INSTRUCTION_SET = re.compile(r"s?sse|ssse|avx|amx|fma|f16c|bmi|popcnt|vaes|gfni|vpclmul")


class SetupError(Exception):
    """Set-up cannot go on; the message is one line that says what to do."""


class Compiler(NamedTuple):
    """A C and C++ compiler that was seen to build a program.

    ``c`` and ``cxx`` are None where CMake finds the compiler by itself (Visual Studio).
    """

    c: str | None
    cxx: str | None
    gcc_major: int | None  # None: not GCC


def cache_dir(env: Mapping[str, str] = os.environ, system: str = sys.platform) -> Path:
    """Where built wheels are kept: FERRUM_CACHE_DIR, or the user's cache directory."""
    if env.get("FERRUM_CACHE_DIR"):
        return Path(env["FERRUM_CACHE_DIR"]).expanduser().absolute()
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]) / "ferrum-local"
    if system == "win32" and env.get("LOCALAPPDATA"):
        return Path(env["LOCALAPPDATA"]) / "ferrum-local" / "cache"
    if system == "darwin":
        return Path.home() / "Library" / "Caches" / "ferrum-local"
    return Path.home() / ".cache" / "ferrum-local"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """The instruction sets of this CPU, or its name where the system does not list them."""
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^(flags|Features)\s*:(.*)$", text, re.MULTILINE)
        if match:
            flags = set(match.group(2).split())
            if match.group(1) == "flags":  # x86 also lists kernel features, which may change
                flags = {flag for flag in flags if INSTRUCTION_SET.match(flag)}
            return tuple(sorted(flags))
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return (found.stdout.strip(),)
    return (platform.processor(),)


def machine_name() -> str:
    """System, architecture and C library, as ``Linux-x86_64-glibc2.36``."""
    return "-".join([platform.system(), platform.machine(), "".join(platform.libc_ver())])


def package_hint(os_release: Path = Path("/etc/os-release"), system: str = sys.platform) -> str:
    """What to type to get a C++ compiler here."""
    if system == "darwin":
        return "xcode-select --install"
    if system == "win32":
        return 'Visual Studio Build Tools with "Desktop development with C++"'
    text = os_release.read_text(encoding="utf-8") if os_release.exists() else ""
    families = set(re.findall(r"[a-z]+", " ".join(re.findall(r"^ID(?:_LIKE)?=(.*)$", text, re.M))))
    if families & {"fedora", "rhel", "centos"}:
        return "sudo dnf install gcc-c++"
    if families & {"suse", "opensuse"}:
        return "sudo zypper install gcc-c++"
    if "arch" in families:
        return "sudo pacman -S base-devel"
    if "alpine" in families:
        return "sudo apk add build-base linux-headers"
    return "sudo apt install build-essential"


def no_compiler_message(hint: str) -> str:
    """One line for someone without a compiler: two ways on."""
    return (
        f"no working C++ compiler found, and llama.cpp has to be compiled: install one ({hint}), "
        f"or take a prebuilt CPU wheel with `make setup PREBUILT=cpu` (from {PREBUILT_INDEX}/cpu)"
    )


def find_compiler(env: Mapping[str, str] = os.environ) -> Compiler:
    """The first compiler pair that really builds a C++17 program.

    :raises SetupError: when there is none; the message names the remedy.
    """
    path = env.get("PATH", "")
    pairs = [("gcc", "g++"), ("clang", "clang++"), ("cc", "c++")]
    if sys.platform == "darwin":
        pairs.reverse()
    if env.get("CC") or env.get("CXX"):
        pairs = [(env.get("CC", "cc"), env.get("CXX", "c++"))]
    for c_name, cxx_name in pairs:
        # CC may carry arguments ("ccache gcc"): CMake takes them, so they are kept.
        c, cxx = c_name.split(), cxx_name.split()
        if not (shutil.which(c[0], path=path) and shutil.which(cxx[0], path=path)):
            continue
        if _compiles(c, "c", env) and _compiles(cxx, "c++", env):
            return Compiler(c_name, cxx_name, _gcc_major(cxx, env))
    if sys.platform == "win32" and (shutil.which("cl", path=path) or _has_visual_studio(env)):
        return Compiler(None, None, None)
    raise SetupError(no_compiler_message(package_hint()))


def _compiles(command: Sequence[str], language: str, env: Mapping[str, str]) -> bool:
    """Build a tiny program: a stub on the PATH (Xcode's) or missing headers show only then."""
    header = "string" if language == "c++" else "stdio.h"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.txt"
        source.write_text(f"#include <{header}>\nint main(void) {{ return 0; }}\n")
        done = subprocess.run(
            [*command, "-x", language, str(source), "-o", str(Path(scratch) / "probe.out")],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    return done.returncode == 0


def _gcc_major(command: Sequence[str], env: Mapping[str, str]) -> int | None:
    def ask(option: str) -> str:
        done = subprocess.run(
            [*command, option], env=dict(env), capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    if "Free Software Foundation" not in ask("--version"):
        return None
    match = re.match(r"\d+", ask("-dumpversion"))
    return int(match.group()) if match else None


def _has_visual_studio(env: Mapping[str, str]) -> bool:
    programs = env.get("ProgramFiles(x86)", r"C:\Program Files (x86)")
    vswhere = Path(programs) / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    if not vswhere.exists():
        return False
    tools = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    command = [str(vswhere), "-products", "*", "-requires", tools, "-property", "installationPath"]
    return bool(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())


def probe_python(command: Sequence[str]) -> tuple[tuple[int, int], bool] | None:
    """Version of an interpreter and whether it can make a venv; None when it does not run."""
    code = (
        "import sys, importlib.util as u; "
        "print(*sys.version_info[:2], int(bool(u.find_spec('venv') and u.find_spec('ensurepip'))))"
    )
    try:
        done = subprocess.run(
            [*command, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 3:
        return None
    return (int(words[0]), int(words[1])), words[2] == "1"


def find_python(candidates: Sequence[Sequence[str]] | None = None) -> list[str]:
    """Command of a Python in range that can make a venv.

    :raises SetupError: when there is none; the message names what to install.
    """
    if candidates is None:
        versions = [f"{major}.{minor}" for major, minor in reversed(_versions())]
        named = [["py", f"-{version}"] for version in versions if os.name == "nt"]
        candidates = [[sys.executable], *named, *([f"python{version}"] for version in versions)]
    without_venv: list[tuple[int, int]] = []
    seen: list[str] = []
    for command in candidates:
        found = probe_python(command)
        if found is None:
            continue
        version, has_venv = found
        seen.append(".".join(map(str, version)))
        if PYTHON_RANGE[0] <= version <= PYTHON_RANGE[1]:
            if has_venv:
                return list(command)
            without_venv.append(version)
    if without_venv:
        name = "python{}.{}-venv".format(*without_venv[0])
        raise SetupError(f"this Python cannot make a venv: sudo apt install {name}")
    raise SetupError(
        f"Python 3.10 to 3.13 is needed, but only {', '.join(seen) or 'none'} was found: install "
        "one and name it, as in `make setup PYTHON=python3.12`"
    )


def _versions() -> list[tuple[int, int]]:
    (major, first), (_, last) = PYTHON_RANGE
    return [(major, minor) for minor in range(first, last + 1)]
