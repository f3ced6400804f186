"""Make a working ferrum-local out of a fresh clone: ``python3 scripts/setup_env.py``.

Makes .venv, installs what requirements.lock names, compiles llama.cpp for this machine, fetches the
starter models and checks that they run. Each stage is skipped when it is done already, so an
interrupted set-up goes on where it was, and a finished one touches no network. Standard library
only, Python 3.8 syntax: it runs before anything is installed, under whatever Python is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Sequence  # noqa: UP035 - Python 3.8

import native_build as native
from files import exclusive, replacing
from machine import (
    PREBUILT_INDEX,
    PYTHON_RANGE,
    Compiler,
    SetupError,
    cache_dir,
    cpu_flags,
    find_compiler,
    find_python,
    machine_name,
    probe_python,
)
from progress import CommandFailed, Progress, format_elapsed, run_logged, stop_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
CHECK_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
NATIVE_PACKAGE = "llama-cpp-python"


class Options(NamedTuple):
    """What was asked for. ``backend`` and ``prebuilt`` None: as in the last set-up here."""

    backend: str | None
    prebuilt: str | None
    dev: bool
    groups: tuple[str, ...]


class Choice(NamedTuple):
    """Which llama.cpp is installed: backend, prebuilt index or None, CMAKE_ARGS of the user."""

    backend: str
    prebuilt: str | None
    cmake_args: str


class Stamp:
    """What is done, stage by stage; lies in .venv, so it goes when .venv goes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.stages: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.stages = {}

    def is_done(self, stage: str, key: object) -> bool:
        return bool(self.stages.get(stage) == key)

    def mark(self, stage: str, key: object) -> None:
        self.stages[stage] = key
        with replacing(self._path) as handle:
            handle.write(json.dumps(self.stages, indent=1).encode())


class Lock(NamedTuple):
    """A lock file, with llama-cpp-python taken out: it is built apart."""

    others: str
    native: str  # "llama-cpp-python==… --hash=…"
    n_packages: int

    @property
    def native_version(self) -> str:
        return self.native.split("==")[1].split()[0]


def read_lock(text: str) -> Lock:
    """Split a lock file into its requirements.

    :raises SetupError: when llama-cpp-python is not among them.
    """
    blocks = re.findall(r"^[a-zA-Z0-9].*(?:\n[ \t].*)*", text, re.MULTILINE)
    mine = [block for block in blocks if block.startswith(f"{NATIVE_PACKAGE}==")]
    if not mine:
        raise SetupError(f"requirements.lock does not name {NATIVE_PACKAGE}")
    lines = [line for line in mine[0].splitlines() if not line.strip().startswith("#")]
    native_requirement = "\n".join(lines).rstrip("\\ \n") + "\n"
    rest = [block for block in blocks if block not in mine]
    return Lock("\n".join(rest) + "\n", native_requirement, len(rest))


def say(text: str) -> None:
    """One line of progress, at once."""
    print(text, flush=True)


class Setup:
    """The stages, in order; ``run`` does what is left of them."""

    def __init__(self, root: Path, options: Options) -> None:
        self.root = root
        self.options = options
        self.venv = root / ".venv"
        scripts, name = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
        self.python = self.venv / scripts / name
        self.log = root / ".setup" / "setup.log"
        self.stamp = Stamp(self.venv / "ferrum-setup.json")
        self.lock = read_lock((root / "requirements.lock").read_text(encoding="utf-8"))

    def run(self) -> None:
        self.make_venv()
        self.choice = self.choose_build()
        compiler = None if self.llama_is_at_hand() else find_compiler()
        self.install_packages("requirements.lock")
        if self.options.dev:
            self.install_packages("requirements-dev.lock")
        self.install_llama(compiler)
        self.install_ferrum_local()
        self.fetch_models()
        self.check_llama()
        self.convert_models()
        say(f"set-up is complete: {self.description()}")

    def pip(self, arguments: Sequence[str], progress: Progress, **more: Any) -> None:
        command = [str(self.python), "-m", "pip", *arguments, "--disable-pip-version-check"]
        run_logged([*command, "--no-input"], self.log, progress=progress, **more)

    def make_venv(self) -> None:
        found = probe_python([str(self.python)]) if self.python.exists() else None
        if found and PYTHON_RANGE[0] <= found[0] <= PYTHON_RANGE[1] and self.pip_runs():
            return
        python = find_python()
        # What is left of an interrupted or outdated one is cleared, stamp included.
        say(f"making .venv with {' '.join(python)}")
        command = [*python, "-m", "venv", "--clear", str(self.venv)]
        run_logged(command, self.log, progress=Progress("making .venv"))
        self.stamp = Stamp(self.venv / "ferrum-setup.json")

    def pip_runs(self) -> bool:
        command = [str(self.python), "-c", "import pip"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def choose_build(self) -> Choice:
        """As asked; when nothing was asked, as the last time here, else the default."""
        backend, prebuilt = self.options.backend, self.options.prebuilt
        cmake_args = os.environ.get("CMAKE_ARGS")
        last = self.stamp.stages.get("choice")
        if last and backend is prebuilt is cmake_args is None:
            return Choice(*last)
        if backend is None and prebuilt and "://" not in prebuilt:
            backend = "cuda" if prebuilt.startswith("cu") else prebuilt
        backend = backend or ("metal" if sys.platform == "darwin" else "cpu")
        if backend not in native.BACKENDS:
            raise SetupError(f"unknown BACKEND {backend!r}: one of {', '.join(native.BACKENDS)}")
        return Choice(backend, prebuilt, cmake_args or "")

    def request(self) -> native.BuildRequest:
        return native.BuildRequest(
            self.lock.native_version,
            self.choice.backend,
            self.choice.cmake_args,
            machine_name(),
            cpu_flags(),
        )

    def llama_key(self) -> list[str | None]:
        return [self.request().key(), self.choice.prebuilt]

    def llama_is_at_hand(self) -> bool:
        return (
            self.choice.prebuilt is not None
            or self.stamp.is_done("llama", self.llama_key())
            or native.cached_wheel(cache_dir(), self.request()) is not None
        )

    def install_packages(self, lock_name: str) -> None:
        text = (self.root / lock_name).read_text(encoding="utf-8")
        key = hashlib.sha256(text.encode()).hexdigest()
        if self.stamp.is_done(lock_name, key):
            return
        lock = read_lock(text)
        say(f"installing the packages of {lock_name}")
        requirements = self.log.parent / f"{lock_name}.txt"
        requirements.parent.mkdir(parents=True, exist_ok=True)
        requirements.write_text(lock.others, encoding="utf-8")
        progress = Progress("installing", "packages")
        seen: set[str] = set()

        def parse(line: str) -> tuple[int, int] | None:
            words = line.split()
            if words[:1] == ["Collecting"] or words[:2] == ["Requirement", "already"]:
                seen.add(line)
            return len(seen), lock.n_packages

        arguments = ["install", "--no-deps", "--require-hashes", "--requirement", str(requirements)]
        self.pip(arguments, progress, parse=parse)
        self.stamp.mark(lock_name, key)

    def install_llama(self, compiler: Compiler | None) -> None:
        if self.stamp.is_done("llama", self.llama_key()):
            return
        install = ["install", "--no-deps", "--force-reinstall"]
        prebuilt = self.choice.prebuilt
        if prebuilt:
            url = prebuilt if "://" in prebuilt else f"{PREBUILT_INDEX}/{prebuilt}"
            say(f"installing a prebuilt llama.cpp from {url}")
            wanted = f"{NATIVE_PACKAGE}=={self.lock.native_version}"
            install += ["--only-binary", NATIVE_PACKAGE, "--extra-index-url", url, wanted]
            try:
                self.pip(install, Progress("downloading a prebuilt llama.cpp"))
            except CommandFailed as error:
                raise SetupError(
                    f"no prebuilt wheel of {wanted} for this machine at {url} (log: {self.log})"
                ) from error
        else:
            wheel = native.cached_wheel(cache_dir(), self.request())
            if wheel is None:
                assert compiler is not None  # found before anything was installed
                wheel = self.build(native.native_flags(self.request(), compiler), compiler)
            else:
                say(f"installing llama.cpp as built before ({wheel.parent})")
            self.pip([*install, "--no-index", str(wheel)], Progress("installing llama.cpp"))
        self.stamp.mark("checked", None)
        self.stamp.mark("choice", list(self.choice))
        self.stamp.mark("llama", self.llama_key())

    def build(self, flags: native.BuildFlags, compiler: Compiler) -> Path:
        given = " ".join([*flags.cmake_args, *flags.compile_flags]) or "for this CPU"
        say(
            f"compiling llama.cpp, backend {self.choice.backend} ({given}): takes minutes, "
            f"kept for later in {cache_dir()}"
        )
        progress = Progress("")
        wheel = native.build_wheel(
            self.python,
            self.lock.native,
            self.request(),
            flags,
            compiler,
            cache=cache_dir(),
            log=self.log,
        )
        say(f"  compiled in {format_elapsed(progress.elapsed_s())}")
        return wheel

    def install_ferrum_local(self) -> None:
        project = (self.root / "pyproject.toml").read_bytes()
        package = (self.root / "ferrum_local" / "__init__.py").read_bytes()
        key = [hashlib.sha256(project + package).hexdigest(), str(self.root)]
        if self.stamp.is_done("ferrum-local", key):
            return
        say("installing ferrum-local (editable)")
        arguments = ["install", "--no-deps", "--editable", str(self.root)]
        self.pip(arguments, Progress("installing ferrum-local"))
        self.stamp.mark("ferrum-local", key)

    def fetch_models(self) -> None:
        # Under the new Python, which surely has a TOML reader.
        script = Path(__file__).with_name("fetch_models.py")
        command = [str(self.python), str(script), "--quiet", *self.options.groups]
        child = subprocess.Popen([*command, "--models-dir", str(self.root / "models")])
        try:
            returncode = child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise
        if returncode != 0:
            raise SetupError(f"the models {', '.join(self.options.groups)} could not be fetched")

    def convert_models(self) -> None:
        """Make GGUF files of what does not come as one. Needs a llama.cpp that runs."""
        script = Path(__file__).with_name("convert_minilm.py")
        command = [str(self.python), str(script), "--quiet", "--models-dir"]
        if subprocess.run([*command, str(self.root / "models")], check=False).returncode != 0:
            raise SetupError("the embedding model could not be converted")

    def check_llama(self) -> None:
        """Prove in a child process that the backend is in and that a decode works.

        A CPU build that crashes is made once more with basic instructions only.
        """
        if self.stamp.stages.get("checked"):
            return
        report, returncode = self.ask_llama()
        # A crash is a signal, or one of Windows' codes for an exception (0xC000001D …).
        crashed = returncode < 0 or returncode > 255
        if crashed and not self.choice.prebuilt and self.choice.backend == "cpu":
            say(
                f"this build of llama.cpp crashes here (code {returncode}): building it once more "
                "without the newest CPU instructions"
            )
            compiler = find_compiler()
            wheel = self.build(native.conservative_flags(self.request()), compiler)
            install = ["install", "--no-deps", "--force-reinstall", "--no-index", str(wheel)]
            self.pip(install, Progress("installing llama.cpp"))
            report, returncode = self.ask_llama()
        if report is None:
            self.stamp.mark("llama", None)
            hint = "; without PREBUILT it is built to fit this CPU" if self.choice.prebuilt else ""
            raise SetupError(
                f"llama.cpp does not run here (code {returncode}, log: {self.log}){hint}"
            )
        names = native.REGISTRY_NAMES[self.choice.backend]
        if not set(names) & set(report["backends"]):
            self.stamp.mark("llama", None)
            found = ", ".join(report["backends"])
            raise SetupError(
                f"llama.cpp was built without {self.choice.backend}, it has {found}: see {self.log}"
            )
        self.stamp.mark("checked", report)
        # The CPU is a device too: one alone means that the accelerator found none of its own.
        if self.choice.backend != "cpu" and len(report["devices"]) < 2:
            say(f"  note: no {self.choice.backend} device found, models will run on the CPU")

    def ask_llama(self) -> tuple[dict[str, Any] | None, int]:
        """The report of check_llama.py, or None and the code it ended with."""
        script = Path(__file__).with_name("check_llama.py")
        command = [str(self.python), str(script), str(self.root / "models" / CHECK_MODEL)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        with self.log.open("a", encoding="utf-8") as log_file:
            log_file.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
        if done.returncode != 0:
            return None, done.returncode
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report, 0

    def description(self) -> str:
        report = self.stamp.stages["checked"]
        devices = "; ".join(report["devices"])
        return f"llama.cpp ({NATIVE_PACKAGE} {report['version']}), {self.choice.backend}, {devices}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", help=f"build for {', '.join(native.BACKENDS)}")
    parser.add_argument(
        "--prebuilt", metavar="INDEX", help="take a prebuilt llama.cpp: cpu, metal, cu124 or a URL"
    )
    parser.add_argument("--dev", action="store_true", help="with what the tests need")
    parser.add_argument("--models", nargs="*", default=[], metavar="GROUP")
    given = parser.parse_args(arguments)
    options = Options(
        given.backend or None,
        given.prebuilt or None,
        given.dev,
        # llama.cpp is checked with a starter model.
        tuple(dict.fromkeys(["starter", *given.models])),
    )
    stop_on_sigterm()
    try:
        with exclusive(ROOT / ".setup" / "lock", "another set-up"):
            Setup(ROOT, options).run()
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except CommandFailed as error:
        print(f"error: {error}; its last lines:\n{error.tail()}", file=sys.stderr)
        print(f"error: the whole output is in {error.log}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
