"""What was installed: Python, packages, llama.cpp's build, a compiler, espeak-ng's data."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ferrum_local.cli.doctor import cpu
from ferrum_local.cli.doctor.child import ILLEGAL_INSTRUCTION, Outcome
from ferrum_local.cli.doctor.findings import Finding, ok, problem, warning
from ferrum_local.processes import environment_for_others, is_frozen

PYTHONS = ((3, 10), (3, 13))  # as requires-python in pyproject.toml
PREBUILT_INDEX = "https://abetlen.github.io/llama-cpp-python/whl/cpu"
_COMPILERS = ("c++", "g++", "clang++")
_COMPILER_OF = {
    "darwin": "`xcode-select --install`",
    "win32": 'the Visual Studio Build Tools with "Desktop development with C++"',
}


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    shown = f"{version[0]}.{version[1]}"
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return ok("python", f"{shown} at {sys.executable}")
    return problem(
        "python", f"{shown} is not supported", "use Python 3.10 to 3.13, in a new environment"
    )


def check_packages(distribution: str = "ferrum-local") -> Iterator[Finding]:
    """Every package that is needed, and in a version that was tested."""
    from packaging.requirements import Requirement

    if is_frozen():
        yield ok("packages", "all are within this program")
        return
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        yield warning(
            "packages",
            f"{distribution} runs without being installed, so no versions can be compared",
            "pip install .",
        )
        return
    wrong = 0
    requirements = [Requirement(line) for line in lines]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in needed:
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong += 1
            yield problem("packages", f"{requirement.name} is missing", f'pip install "{wanted}"')
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong += 1
            what = f"{requirement.name} {version} is not the tested {requirement.specifier}"
            yield problem("packages", what, f'pip install "{wanted}"')
    if not wrong:
        yield ok("packages", f"{len(needed)} needed, all there in tested versions")


def check_build(outcome: Outcome, flags: frozenset[str] | None) -> Iterator[Finding]:
    """llama.cpp: whether it can be loaded, suits this CPU, and uses the GPU that is here.

    :param outcome: of the probe of the build.
    :param flags: what the CPU can; None: the system does not tell.
    """
    if outcome.crash == ILLEGAL_INSTRUCTION:
        what = f"was built for another CPU than {cpu.cpu_name()}: {outcome.error}"
        yield problem("llama.cpp", what, rebuild_remedy(()))
        return
    if outcome.error is not None:
        yield problem("llama.cpp", outcome.error, install_remedy())
        return
    features, gpus = outcome.facts["cpu_features"], outcome.facts["gpus"]
    devices = ", ".join(outcome.facts["devices"])
    yield ok("llama.cpp", f"{outcome.facts['version']}, computes on {devices}")
    if flags is None:
        yield ok("cpu", f"{cpu.cpu_name()}; the build uses {' '.join(features)}")
    elif missing := cpu.missing_instructions(features, flags):
        what = f"llama.cpp was built with {', '.join(missing)}, which {cpu.cpu_name()} lacks"
        yield problem("cpu", what, rebuild_remedy(missing))
    else:
        yield ok("cpu", f"{cpu.cpu_name()} has all that the build uses: {' '.join(features)}")
    yield _check_gpu(gpus)


def _check_gpu(gpus: list[str]) -> Finding:
    if gpus:
        return ok("gpu", ", ".join(gpus))
    if shutil.which("nvidia-smi"):
        remedy = "build for it: `make setup BACKEND=cuda` (docs/install.md)"
        return warning("gpu", "there is an NVIDIA driver, but llama.cpp was built without", remedy)
    if sys.platform == "darwin":
        remedy = "build for it: `make setup BACKEND=metal` (docs/install.md)"
        return warning("gpu", "llama.cpp was built without Metal", remedy)
    return ok("gpu", "none; `make setup BACKEND=vulkan` builds for other cards than NVIDIA's")


def install_remedy() -> str:
    return (
        f"take the prebuilt wheel: pip install {_pin()} --extra-index-url {PREBUILT_INDEX}; or "
        f"compile, with {_compiler_package()}"
    )


def rebuild_remedy(missing: tuple[str, ...]) -> str:
    """How to get a build without these instructions; with none named, the most basic one."""
    return (
        f'compile one that suits it: CMAKE_ARGS="{cpu.cmake_arguments(missing)}" pip install '
        f"--force-reinstall --no-cache-dir --no-binary llama-cpp-python {_pin()}; in a clone, "
        "`make setup` does that"
    )


def _pin() -> str:
    return f"llama-cpp-python=={_version()}" if _version() else "llama-cpp-python"


def _version() -> str:
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_compiler() -> Finding:
    """Needed only to build llama.cpp, so that its lack is no problem where a build is there."""
    for name in _COMPILERS:
        if shutil.which(name) is None:
            continue
        # Xcode's stub is on the path and says that there is nothing behind it.
        done = subprocess.run(
            [name, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=environment_for_others(), check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return ok("compiler", done.stdout.splitlines()[0].strip() if done.stdout else name)
    if shutil.which("cl") is not None:
        return ok("compiler", "Visual C++")
    return warning(
        "compiler",
        "there is no C++ compiler; one is needed only to build llama.cpp anew",
        f"install {_compiler_package()}, or use the prebuilt wheels at {PREBUILT_INDEX}",
    )


def _compiler_package() -> str:
    return _COMPILER_OF.get(sys.platform, "`sudo apt install build-essential` or its like")


def check_espeak() -> Finding:
    """Looked up without importing the package: its native part is for the child."""
    spec = importlib.util.find_spec("piper")
    if spec is None or not spec.submodule_search_locations:
        remedy = 'pip install "piper-tts>=1.8,<2" (GPL, see docs/dependencies.md)'
        return warning("espeak-ng", "piper-tts is not installed: nothing can be spoken", remedy)
    data = Path(spec.submodule_search_locations[0]) / "espeak-ng-data"
    if (data / "phontab").is_file():
        return ok("espeak-ng", f"its data is at {data}")
    remedy = "pip install --force-reinstall --no-cache-dir piper-tts"
    return problem("espeak-ng", f"its data is not at {data}: voices would be silent", remedy)
