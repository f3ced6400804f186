"""Build llama-cpp-python for this machine, once, into a wheel cache of our own.

pip's cache does not know of CMAKE_ARGS nor of the CPU, so a build for one backend or machine would
come back for another. Ours is keyed by both. Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import NamedTuple

from files import exclusive, replacing, sha256_of
from machine import Compiler
from progress import Progress, run_logged

BACKENDS = ("cpu", "cuda", "metal", "vulkan")
CMAKE_OPTIONS: dict[str, list[str]] = {
    "cpu": [],
    "cuda": ["-DGGML_CUDA=on"],
    "metal": ["-DGGML_METAL=on"],
    "vulkan": ["-DGGML_VULKAN=on"],
}
#: The names that a backend may have in ggml's registry, by llama.cpp version.
REGISTRY_NAMES = {
    "cpu": ("CPU",),
    "cuda": ("CUDA",),
    "metal": ("Metal", "MTL"),
    "vulkan": ("Vulkan",),
}
#: CMake option → CPU flag, for a build that uses nothing newer than these.
BASIC_INSTRUCTIONS = {
    "GGML_SSE42": "sse4_2",
    "GGML_AVX": "avx",
    "GGML_AVX2": "avx2",
    "GGML_FMA": "fma",
    "GGML_F16C": "f16c",
    "GGML_BMI2": "bmi2",
}
NO_AMX_FLAGS = ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]
# Hides AVX512-FP16 from ggml, in a way that compilers which do not know it accept.
NO_FP16_FLAG = "-U__AVX512FP16__"
BUILD_COUNT = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]")


class BuildRequest(NamedTuple):
    """Everything that makes one llama-cpp-python wheel differ from another."""

    version: str
    backend: str
    user_cmake_args: str
    machine: str
    cpu_flags: tuple[str, ...]

    def key(self) -> str:
        """Directory name in the cache.

        The Python version is no part of it: the wheel is ``py3-none`` (ctypes, no extension
        module). Neither is the compiler: any build that passed the check is as good.
        """
        described = json.dumps(self)
        if _has_fp16(self):  # builds of before have it
            described += NO_FP16_FLAG
        digest = hashlib.sha256(described.encode()).hexdigest()[:16]
        return f"{self.version}-{self.backend}-{digest}"


class BuildFlags(NamedTuple):
    """What the compiler is told: CMake arguments and extra C/C++ flags."""

    cmake_args: tuple[str, ...]
    compile_flags: tuple[str, ...]


# -- flags ----------------------------------------------------------------------------------


def native_flags(request: BuildRequest, compiler: Compiler) -> BuildFlags:
    """Flags for a build that uses everything this CPU has."""
    cmake_args = list(CMAKE_OPTIONS[request.backend])
    if request.backend == "cpu" and request.machine.startswith("Darwin"):
        cmake_args.append("-DGGML_METAL=off")  # llama.cpp turns it on by default there
    compile_flags: list[str] = []
    # GCC before 14 declares only 8 bytes as input of _tile_loadconfig and drops most of the stores
    # to the 64-byte tile configuration: ldtilecfg then faults at the first prefill.
    if "amx_tile" in request.cpu_flags and compiler.gcc_major and compiler.gcc_major < 14:
        compile_flags = list(NO_AMX_FLAGS)
    # With it ggml adds up values 128 at a time and what is left one by one, so heads of 64, which
    # most small models have, made flash attention up to twice as slow.
    if _has_fp16(request):
        compile_flags.append(NO_FP16_FLAG)
    return BuildFlags(
        (*cmake_args, *request.user_cmake_args.split()),
        tuple(compile_flags),
    )


def _has_fp16(request: BuildRequest) -> bool:
    return "avx512_fp16" in request.cpu_flags


def conservative_flags(request: BuildRequest) -> BuildFlags:
    """Flags for a build that uses only instructions of the last decade, if the CPU has them."""
    cmake_args = [*CMAKE_OPTIONS[request.backend], "-DGGML_NATIVE=OFF"]
    if "x86" in request.machine or "AMD64" in request.machine:
        for option, flag in BASIC_INSTRUCTIONS.items():
            cmake_args.append(f"-D{option}={'ON' if flag in request.cpu_flags else 'OFF'}")
    return BuildFlags((*cmake_args, *request.user_cmake_args.split()), ())


# -- cache and build ------------------------------------------------------------------------


def cached_wheel(
    cache: Path, request: BuildRequest, flags: BuildFlags | None = None
) -> Path | None:
    """A finished wheel for ``request``, or None; a damaged one counts as none.

    :param flags: only a wheel built with just these.
    """
    directory = cache / "wheels" / request.key()
    try:
        facts = json.loads((directory / "build.json").read_text(encoding="utf-8"))
        wheel = directory / str(facts["wheel"])
        wanted = flags is None or facts["flags"] == json.loads(json.dumps(flags._asdict()))
        if wanted and sha256_of(wheel) == facts["sha256"]:
            return wheel
    except (OSError, ValueError, KeyError):
        pass  # not there, or cut short: it is built again
    return None


def store_wheel(cache: Path, request: BuildRequest, flags: BuildFlags, wheel: Path) -> Path:
    """Move a built wheel into the cache; ``build.json`` comes last and makes it count."""
    directory = cache / "wheels" / request.key()
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / wheel.name
    facts = directory / "build.json"
    facts.unlink(missing_ok=True)
    shutil.move(str(wheel), str(target))
    described = {
        "wheel": target.name,
        "sha256": sha256_of(target),
        "request": request._asdict(),
        "flags": flags._asdict(),
    }
    with replacing(facts) as handle:
        handle.write(json.dumps(described, indent=2).encode())
    return target


def build_wheel(
    python: Path,
    requirement: str,
    request: BuildRequest,
    flags: BuildFlags,
    compiler: Compiler,
    *,
    cache: Path,
    log: Path,
) -> Path:
    """Compile llama-cpp-python and put the wheel into the cache; the path of the wheel.

    The source and the build tree stay until the wheel is there, so that an interrupted compile
    goes on where it was.

    :param requirement: ``llama-cpp-python==… --hash=…`` as in the lock file.
    :raises CommandFailed: when pip, CMake or the compiler fails.
    """
    digest = hashlib.sha256(json.dumps(flags).encode()).hexdigest()[:8]
    work = cache / "build" / f"{request.key()}-{digest}"
    with exclusive(cache / "build" / f"{work.name}.lock", "another build of llama.cpp") as lock_fd:
        finished = cached_wheel(cache, request, flags)
        if finished:  # by the other build that held the lock
            return finished
        source = _source(python, requirement, work, log)
        env = dict(os.environ, CMAKE_ARGS=" ".join(flags.cmake_args))
        env["SKBUILD_BUILD_DIR"] = str(work / "cmake")
        for name, value in (("CC", compiler.c), ("CXX", compiler.cxx)):
            if value:
                env[name] = value
        for name in ("CFLAGS", "CXXFLAGS"):
            env[name] = " ".join([os.environ.get(name, ""), *flags.compile_flags]).strip()
        out = work / "wheel"
        shutil.rmtree(out, ignore_errors=True)
        run_logged(
            [str(python), "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-cache-dir"]
            + ["--disable-pip-version-check", "--wheel-dir", str(out), str(source)],
            log,
            progress=Progress("compiling llama.cpp", "steps"),
            parse=build_count,
            env=env,
            keep_fds=[lock_fd],
        )
        wheel = store_wheel(cache, request, flags, next(out.glob("*.whl")))
        shutil.rmtree(work, ignore_errors=True)
        return wheel


def build_count(line: str) -> tuple[int, int] | None:
    """``[12/193] g++ …`` (ninja) → ``(12, 193)``, ``[ 40%] Building …`` (make) → ``(40, 100)``."""
    match = BUILD_COUNT.match(line.strip())
    return (int(match.group(1)), int(match.group(2) or 100)) if match else None


def _source(python: Path, requirement: str, work: Path, log: Path) -> Path:
    """The unpacked source of llama-cpp-python, downloaded when it is not there yet."""
    source = work / "source"
    if source.exists():
        return source
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    wanted = work / "requirement.txt"
    wanted.write_text(requirement, encoding="utf-8")
    download = work / "download"
    run_logged(
        [str(python), "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--require-hashes"]
        + ["--disable-pip-version-check", "--no-binary", "llama-cpp-python"]
        + ["--dest", str(download), "--requirement", str(wanted)],
        log,
        progress=Progress("downloading the source of llama.cpp"),
    )
    unpacked = work / "unpacked"
    with tarfile.open(next(download.glob("*.tar.gz"))) as archive:
        if hasattr(tarfile, "data_filter"):  # later Pythons warn or refuse without it
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(unpacked)
    os.replace(next(unpacked.iterdir()), source)
    shutil.rmtree(download)
    return source
