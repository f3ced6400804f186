"""Set-up of a fresh clone: finding Python and a compiler, the wheel cache, the check of a build."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import native_build as native
import setup_env
from machine import (
    PREBUILT_INDEX,
    Compiler,
    SetupError,
    cache_dir,
    cpu_flags,
    find_compiler,
    find_python,
    no_compiler_message,
    package_hint,
)
from progress import CommandFailed, Progress, run_logged
from setup_env import Options, Setup, Stamp, read_lock
from tests.fakes import wait_until

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / setup_env.CHECK_MODEL
AMX_CPU = ("amx_tile", "avx", "avx2", "bmi2", "f16c", "fma", "sse4_2")
REQUEST = native.BuildRequest("0.3.36", "cpu", "", "Linux-x86_64-glibc2.36", AMX_CPU)
GCC_12 = Compiler("gcc", "g++", 12)
posix_only = pytest.mark.skipif(os.name != "posix", reason="uses shell scripts as programs")


def program(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# -- Python ---------------------------------------------------------------------------------


@posix_only
def test_the_first_python_in_range_that_can_make_a_venv_is_taken(tmp_path: Path) -> None:
    old = program(tmp_path / "old", "echo 3 9 1")
    broken = program(tmp_path / "broken", "exit 127")
    bare = program(tmp_path / "bare", "echo 3 12 0")
    good = program(tmp_path / "good", "echo 3 11 1")
    new = program(tmp_path / "new", "echo 3 14 1")
    candidates = [[str(p)] for p in (old, broken, tmp_path / "absent", new, bare, good)]
    assert find_python(candidates) == [str(good)]


@posix_only
def test_without_venv_the_message_names_the_package(tmp_path: Path) -> None:
    bare = program(tmp_path / "bare", "echo 3 12 0")
    with pytest.raises(SetupError, match=r"sudo apt install python3\.12-venv$"):
        find_python([[str(bare)]])


@posix_only
def test_only_an_old_python_is_said_in_one_line(tmp_path: Path) -> None:
    old = program(tmp_path / "old", "echo 3 9 1")
    with pytest.raises(SetupError, match="3.10 to 3.13 is needed, but only 3.9 was found") as error:
        find_python([[str(old)]])
    assert "\n" not in str(error.value)


# -- compiler -------------------------------------------------------------------------------


@posix_only
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a compiler stub in /usr/bin")
def test_ins_01_without_a_compiler_one_line_names_package_and_index(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for part in ("scripts", "ferrum_local"):
        shutil.copytree(ROOT / part, clone / part)
    shutil.copy(ROOT / "requirements.lock", clone)
    empty = tmp_path / "bin"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, str(clone / "scripts" / "setup_env.py")],
        env={"PATH": str(empty), "FERRUM_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"error: {no_compiler_message(package_hint())}\n"
    assert f"{PREBUILT_INDEX}/cpu" in done.stderr
    # Nothing was downloaded, installed or compiled before that.
    assert not (tmp_path / "cache").exists()
    assert "pip" not in (clone / ".setup" / "setup.log").read_text()


@posix_only
def test_ins_01_a_compiler_that_cannot_build_a_program_counts_as_none(tmp_path: Path) -> None:
    for name in ("gcc", "g++", "cc", "c++", "clang", "clang++"):
        program(tmp_path / name, "echo 'xcrun: error: no developer tools' >&2; exit 1")
    with pytest.raises(SetupError, match="no working C\\+\\+ compiler"):
        find_compiler({"PATH": f"{tmp_path}{os.pathsep}/nowhere"})


@posix_only
@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ here")
def test_a_real_compiler_is_found_and_asked_for_its_version() -> None:
    compiler = find_compiler()
    assert compiler.cxx
    asked = subprocess.run(
        [compiler.cxx, "-dumpversion"], capture_output=True, text=True, check=True
    )
    if compiler.gcc_major:
        assert asked.stdout.startswith(str(compiler.gcc_major))


@pytest.mark.parametrize(
    ("os_release", "hint"),
    [
        ("ID=debian\n", "sudo apt install build-essential"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "sudo apt install build-essential"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "sudo dnf install gcc-c++"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "sudo zypper install gcc-c++"),
        ("ID=arch\n", "sudo pacman -S base-devel"),
        ("ID=alpine\n", "sudo apk add build-base linux-headers"),
    ],
)
def test_ins_01_the_package_is_that_of_the_distribution(
    tmp_path: Path, os_release: str, hint: str
) -> None:
    path = tmp_path / "os-release"
    path.write_text(os_release)
    assert package_hint(path, "linux") == hint


def test_ins_01_other_systems_have_their_own_remedy() -> None:
    assert package_hint(system="darwin") == "xcode-select --install"
    assert "Build Tools" in package_hint(system="win32")


# -- flags and cache ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiler", "cpu", "expected"),
    [
        (GCC_12, AMX_CPU, tuple(native.NO_AMX_FLAGS)),
        (Compiler("gcc", "g++", 14), AMX_CPU, ()),
        (Compiler("clang", "clang++", None), AMX_CPU, ()),
        (GCC_12, ("avx2",), ()),
        (GCC_12, ("avx2", "avx512_fp16"), (native.NO_FP16_FLAG,)),
        (GCC_12, ("amx_tile", "avx512_fp16"), (*native.NO_AMX_FLAGS, native.NO_FP16_FLAG)),
    ],
)
def test_amx_is_left_out_where_gcc_miscompiles_it_and_fp16_everywhere(
    compiler: Compiler, cpu: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    flags = native.native_flags(REQUEST._replace(cpu_flags=cpu), compiler)
    assert flags.compile_flags == expected


def test_each_backend_has_its_cmake_option() -> None:
    def cmake_args(backend: str, machine: str = REQUEST.machine) -> tuple[str, ...]:
        request = REQUEST._replace(backend=backend, machine=machine, user_cmake_args="-DX=1")
        return native.native_flags(request, GCC_12).cmake_args

    assert cmake_args("cpu") == ("-DX=1",)
    assert cmake_args("cpu", "Darwin-arm64-") == ("-DGGML_METAL=off", "-DX=1")
    assert cmake_args("cuda") == ("-DGGML_CUDA=on", "-DX=1")
    assert cmake_args("metal") == ("-DGGML_METAL=on", "-DX=1")
    assert cmake_args("vulkan") == ("-DGGML_VULKAN=on", "-DX=1")


def test_the_conservative_build_uses_nothing_that_the_cpu_lacks() -> None:
    old = REQUEST._replace(cpu_flags=("avx", "sse4_2"))
    cmake_args = native.conservative_flags(old).cmake_args
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX=ON", "-DGGML_AVX2=OFF"} <= set(cmake_args)


def test_the_cache_key_tells_builds_apart() -> None:
    variants = [
        REQUEST,
        REQUEST._replace(version="0.3.37"),
        REQUEST._replace(backend="cuda"),
        REQUEST._replace(user_cmake_args="-DGGML_BLAS=ON"),
        REQUEST._replace(machine="Linux-x86_64-glibc2.39"),
        REQUEST._replace(cpu_flags=("avx2",)),
    ]
    assert len({request.key() for request in variants}) == len(variants)


def test_a_stored_wheel_is_found_until_it_is_damaged(tmp_path: Path) -> None:
    built = tmp_path / "llama_cpp_python-0.3.36-py3-none-any.whl"
    built.write_bytes(b"wheel")
    flags = native.native_flags(REQUEST, GCC_12)
    assert native.cached_wheel(tmp_path, REQUEST) is None
    stored = native.store_wheel(tmp_path, REQUEST, flags, built)
    assert native.cached_wheel(tmp_path, REQUEST) == stored
    assert native.cached_wheel(tmp_path, REQUEST, flags) == stored
    assert native.cached_wheel(tmp_path, REQUEST, native.conservative_flags(REQUEST)) is None
    assert native.cached_wheel(tmp_path, REQUEST._replace(backend="cuda")) is None
    stored.write_bytes(b"whee")
    assert native.cached_wheel(tmp_path, REQUEST) is None


def test_the_cache_directory_follows_the_environment(tmp_path: Path) -> None:
    everything = {
        "FERRUM_CACHE_DIR": str(tmp_path / "own"),
        "XDG_CACHE_HOME": str(tmp_path / "xdg"),
        "LOCALAPPDATA": str(tmp_path / "local"),
    }
    assert cache_dir(everything) == tmp_path / "own"
    del everything["FERRUM_CACHE_DIR"]
    assert cache_dir(everything) == tmp_path / "xdg" / "ferrum-local"
    del everything["XDG_CACHE_HOME"]
    assert cache_dir(everything, "win32") == tmp_path / "local" / "ferrum-local" / "cache"
    assert cache_dir({}, "linux") == Path.home() / ".cache" / "ferrum-local"


def test_cpu_flags_keep_instruction_sets_and_drop_kernel_features(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: X\nflags\t\t: fpu avx2 ibrs user_shstk amx_tile sse4_2\n")
    assert cpu_flags(cpuinfo) == ("amx_tile", "avx2", "sse4_2")
    cpuinfo.write_text("Features\t: fp asimd i8mm\n")
    assert cpu_flags(cpuinfo) == ("asimd", "fp", "i8mm")


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("  [12/193] /usr/bin/g++ -c x.cpp", (12, 193)),
        ("[193/193] done", (193, 193)),
        ("  [ 40%] Building CXX object x.o", (40, 100)),
        ("  *** Configuring CMake...", None),
        ("  warning: see [1/2] below", None),
    ],
)
def test_compile_progress_is_read_from_ninja_and_make(
    line: str, counts: tuple[int, int] | None
) -> None:
    assert native.build_count(line) == counts


# -- the lock file and the stamp ------------------------------------------------------------


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_the_lock_is_split_into_llama_cpp_and_the_rest(name: str) -> None:
    lock = read_lock((ROOT / name).read_text(encoding="utf-8"))
    assert re.fullmatch(r"0\.3\.\d+", lock.native_version)
    assert lock.native.startswith("llama-cpp-python==") and "--hash=sha256:" in lock.native
    assert "llama-cpp-python==" not in lock.others
    assert "flask==" in lock.others
    assert lock.n_packages == len(re.findall(r"^\S+==", lock.others, re.MULTILINE))


def test_a_lock_without_llama_cpp_is_refused() -> None:
    with pytest.raises(SetupError, match="llama-cpp-python"):
        read_lock("flask==3.1.3 \\\n    --hash=sha256:00\n")


def test_a_stamp_lasts_and_a_damaged_one_counts_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "stamp.json"
    Stamp(path).mark("llama", ["key", None])
    assert Stamp(path).is_done("llama", ["key", None])
    assert not Stamp(path).is_done("llama", ["other", None])
    path.write_text("{")
    assert not Stamp(path).is_done("llama", ["key", None])


# -- choice and check of a build ------------------------------------------------------------

REPORT = {
    "version": "0.3.36",
    "backends": ["CPU"],
    "devices": ["CPU: test"],
    "system_info": "",
    "gpu_offload": False,
    "tokens_decoded": 65,
}


class ScriptedSetup(Setup):
    """A set-up whose builds and checks are given: for what a good machine cannot show."""

    def __init__(
        self, root: Path, answers: list[tuple[dict[str, object] | None, int]], **choice: str
    ) -> None:
        shutil.copy(ROOT / "requirements.lock", root)
        asked = Options(choice.get("backend"), choice.get("prebuilt"), False, ("starter",))
        super().__init__(root, asked)
        self.choice = self.choose_build()
        self.answers = answers
        self.built: list[native.BuildFlags] = []

    def ask_llama(self) -> tuple[dict[str, object] | None, int]:
        return self.answers.pop(0)

    def build(self, flags: native.BuildFlags, compiler: Compiler) -> Path:
        self.built.append(flags)
        return self.root / "built.whl"

    def pip(self, arguments: object, progress: Progress, **more: object) -> None:
        pass


@pytest.fixture(autouse=True)
def no_cmake_args(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMAKE_ARGS", raising=False)


def test_a_build_that_crashes_is_made_once_more_with_basic_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_env, "find_compiler", lambda: GCC_12)
    setup = ScriptedSetup(tmp_path, [(None, -11), (REPORT, 0)], backend="cpu")
    setup.check_llama()
    assert ["-DGGML_NATIVE=OFF" in flags.cmake_args for flags in setup.built] == [True]
    assert "crashes here (code -11)" in capsys.readouterr().out
    assert Stamp(tmp_path / ".venv" / "ferrum-setup.json").stages["checked"] == REPORT


def test_a_build_that_fails_without_a_crash_is_not_made_again(tmp_path: Path) -> None:
    setup = ScriptedSetup(tmp_path, [(None, 1)], backend="cpu")
    with pytest.raises(SetupError, match=r"does not run here \(code 1, log: "):
        setup.check_llama()
    assert setup.built == []


def test_ins_02_a_prebuilt_wheel_that_does_not_fit_the_cpu_says_what_does(tmp_path: Path) -> None:
    setup = ScriptedSetup(tmp_path, [(None, -4)], prebuilt="cpu")
    with pytest.raises(SetupError, match="code -4.*without PREBUILT it is built to fit this CPU"):
        setup.check_llama()


def test_a_build_without_the_asked_backend_is_an_error_and_not_kept(tmp_path: Path) -> None:
    setup = ScriptedSetup(tmp_path, [(REPORT, 0)], backend="cuda")
    setup.stamp.mark("llama", setup.llama_key())
    with pytest.raises(SetupError, match="built without cuda, it has CPU"):
        setup.check_llama()
    assert not setup.stamp.is_done("llama", setup.llama_key())


def test_the_last_choice_holds_until_another_is_made(tmp_path: Path) -> None:
    first = ScriptedSetup(tmp_path, [], backend="vulkan")
    first.stamp.mark("choice", list(first.choice))
    assert ScriptedSetup(tmp_path, []).choice.backend == "vulkan"
    assert ScriptedSetup(tmp_path, [], prebuilt="cu124").choice == ("cuda", "cu124", "")
    assert ScriptedSetup(tmp_path, [], backend="cpu").choice == ("cpu", None, "")


def test_an_unknown_backend_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="unknown BACKEND 'gpu': one of cpu, cuda, metal, vulkan"):
        ScriptedSetup(tmp_path, [], backend="gpu")


def test_the_installed_llama_cpp_passes_the_check() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_llama.py"), str(MODEL)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "CPU" in report["backends"]
    assert report["devices"] and report["tokens_decoded"] == 65


def test_the_check_fails_on_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_llama.py"), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "cannot load" in done.stderr


# -- long commands --------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_progress_is_a_line_every_twenty_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress("compiling", "steps", stream=out, clock=clock)
    progress.update(48, 192)
    for second in range(45):
        clock.now_s = float(second)
        progress.tick()
    assert out.getvalue().splitlines() == [
        "  compiling [#######.....................] 48/192 steps, 0:20",
        "  compiling [#######.....................] 48/192 steps, 0:40",
    ]


def test_on_a_terminal_the_bar_is_redrawn_and_removed() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("compiling", stream=out, clock=clock)
    clock.now_s = 75.0
    progress.tick()
    assert out.getvalue().startswith("\r  compiling: working, 1:15")
    progress.close()
    assert out.getvalue().endswith(" \r")


def test_a_failing_command_leaves_its_output_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    code = "print('first'); print('the reason'); raise SystemExit(3)"
    with pytest.raises(CommandFailed) as failed:
        run_logged([sys.executable, "-c", code], log, progress=Progress("x", stream=io.StringIO()))
    assert failed.value.returncode == 3
    assert failed.value.tail().endswith("    first\n    the reason")


@posix_only
def test_an_interruption_ends_the_command_and_what_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    pids: list[int] = []

    def parse(line: str) -> None:
        if line.startswith("child"):
            pids.append(int(line.split()[1]))

    def interrupt() -> None:
        if pids:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_logged(
            [sys.executable, "-c", code],
            tmp_path / "log",
            progress=Progress("x", stream=io.StringIO()),
            parse=parse,
            poll=interrupt,
        )
    (pid,) = pids
    wait_until(lambda: has_ended(pid))


def has_ended(pid: int) -> bool:
    """An orphan that has ended may stay as a zombie until init collects it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
