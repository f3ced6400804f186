"""Makes a program that needs no Python: a directory for apps to ship, frozen with PyInstaller.

Runs in the environment that shall be frozen, on the system it is for. Prints how large it got.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Packages: TypeAlias = dict[str, importlib.metadata.Distribution]

ROOT = Path(__file__).resolve().parent.parent
PARTS = ROOT / "scripts" / "sidecar"
NAME, PACKAGE = "ferrum-local", "ferrum_local"
N_LARGEST = 10
MB = 1_000_000
EXTRAS = ("vision",)  # what is served beyond the plain dependencies, where it is installed
# Packages and modules that our dependencies have for what we never do: downloads, windows, tools.
PACKAGES_LEFT_OUT = ("hf-xet", "sympy")
MODULES_LEFT_OUT = ("huggingface_hub.cli", "numpy.f2py", "tkinter")
LICENCE = re.compile(r"LICEN[CS]E|COPYING|NOTICE|AUTHORS", re.IGNORECASE)
LICENCE_KEYS = ("License-Expression", "License", "Classifier", "Home-page", "Project-URL")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help=f"where {NAME}/ is put (dist)"
    )
    parser.add_argument(
        "--without-piper",
        action="store_true",
        help="no piper-tts (GPL-3.0), so no speech output",
    )
    options = parser.parse_args()
    left_out = (*PACKAGES_LEFT_OUT, "piper-tts") if options.without_piper else PACKAGES_LEFT_OUT
    packages = needed_packages(without=left_out)
    print("Freezing; this takes a minute or two", flush=True)
    code = freeze(options.dist, packages)
    if code != 0:
        print(f"build_sidecar: PyInstaller ended with {code}", file=sys.stderr)
        return code
    bundle = options.dist / NAME
    write_licences(bundle / "licenses", packages)
    print(size_table(bundle))
    return 0


def freeze(dist: Path, packages: Packages) -> int:
    """:returns: PyInstaller's exit code."""
    work = ROOT / "build" / "sidecar"
    command = [sys.executable, "-m", "PyInstaller", "--onedir", "--console", "--noconfirm"]
    command += ["--clean", "--log-level", "WARN", "--name", NAME, "--distpath", str(dist)]
    command += ["--workpath", str(work), "--specpath", str(work), "--paths", str(ROOT)]
    command += ["--additional-hooks-dir", str(PARTS / "hooks")]
    for module in (*MODULES_LEFT_OUT, *sorted(modules_beside(packages))):
        command += ["--exclude-module", module]
    command.append(str(PARTS / "main.py"))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYINSTALLER_CONFIG_DIR": str(work / "cache")}
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def needed_packages(*, without: Sequence[str]) -> Packages:
    """What pyproject.toml names and all that these require, as installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project.get("optional-dependencies", {})
    waiting = [*project["dependencies"], *(line for name in EXTRAS for line in optional[name])]
    packages: Packages = {}
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in packages or name in without or (marker and not marker.evaluate({"extra": ""})):
            continue
        try:
            packages[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed, or PyInstaller will say so
        waiting += packages[name].requires or ()
    return packages


def modules_beside(packages: Packages) -> set[str]:
    """Top-level modules of whatever else is installed. Many packages import some of it if it is
    there, but nobody who installs ours has it."""
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not packages.keys() & {canonicalize_name(owner) for owner in owners}
        and module != PACKAGE
        and module.isidentifier()
    }


def write_licences(target: Path, packages: Packages) -> None:
    """The licence texts of ferrum-local, Python and ``packages``; their names, where a package
    brings no text along."""
    target.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", target / f"{NAME}.txt")
    of_python = Path(os.__file__).parent / "LICENSE.txt"
    if of_python.is_file():
        shutil.copy(of_python, target / "python.txt")
    for name, package in sorted(packages.items()):
        place = target / f"{name}-{package.version}"
        place.mkdir()
        told = package.metadata
        names = [value for key in LICENCE_KEYS for value in told.get_all(key) or ()]
        (place / "METADATA").write_text("\n".join([told["Summary"] or name, *names, ""]), "utf-8")
        for file in package.files or ():
            if LICENCE.match(file.name) and file.suffix not in (".py", ".pyc"):
                copy = place / "-".join(file.parts[1:])
                shutil.copy(str(file.locate()), copy)


def size_table(bundle: Path) -> str:
    """All of it and the largest parts, as Markdown."""
    sizes: dict[str, int] = {}
    for path in bundle.rglob("*"):
        if path.is_file() and not path.is_symlink():
            part = part_of(path.relative_to(bundle))
            sizes[part] = sizes.get(part, 0) + path.stat().st_size
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:N_LARGEST]
    rows = [f"| **{bundle.name}, in all** | **{sum(sizes.values()) / MB:.0f}** |"]
    rows += [f"| {part} | {size / MB:.1f} |" for part, size in largest]
    return "\n".join(["| part | MB |", "| --- | ---: |", *rows])


def part_of(path: Path) -> str:
    """The package that a file of the bundle belongs to; its libraries count with it."""
    names = path.parts[1:] if path.parts[0] == "_internal" else path.parts
    return names[0].removesuffix(".libs") if len(names) > 1 else names[0]


if __name__ == "__main__":
    sys.exit(main())
