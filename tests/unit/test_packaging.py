"""What is installed: metadata, the wheel's content, the lock files, the two commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

import ferrum_local

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("linux", "darwin", "win32")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this project, built without network."""
    out = tmp_path_factory.mktemp("wheel")
    tree = tmp_path_factory.mktemp("tree")
    # A copy: setuptools writes build/ and *.egg-info next to what it builds.
    shutil.copytree(ROOT / "ferrum_local", tree / "ferrum_local")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "--disable-pip-version-check", "--wheel-dir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_has_the_package_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    info = f"ferrum_local-{ferrum_local.__version__}.dist-info"
    scripts = wheel.read(f"{info}/entry_points.txt").decode()
    assert "ferrum-local = ferrum_local.cli:main" in scripts
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: <3.14,>=3.10" in metadata
    assert f"{info}/licenses/LICENSE" in names
    assert "ferrum_local/py.typed" in names and "ferrum_local/__main__.py" in names
    assert {name.split("/")[0] for name in names} == {"ferrum_local", info}


def test_every_module_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ferrum_local").rglob("*.py")}
    assert here == {name for name in wheel.namelist() if name.endswith(".py")}


def pins(lock: str) -> list[tuple[str, str, Marker | None]]:
    """(name, version, marker) of each line of a lock file."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)==([^ ;]+)(?: ; (.*?))? \\$", text, re.MULTILINE)
    return [(name, version, Marker(marker) if marker else None) for name, version, marker in found]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dev", [False, True])
def test_the_lock_pins_each_requirement_once_on_every_python_and_system(
    project: dict[str, Any], python: str, platform: str, dev: bool
) -> None:
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": platform,
    }
    pinned: dict[str, str] = {}
    for name, version, marker in pins("requirements-dev.lock" if dev else "requirements.lock"):
        if marker is None or marker.evaluate(environment):
            assert name not in pinned
            pinned[name] = version
    wanted = list(project["dependencies"])
    if dev:
        wanted += project["optional-dependencies"]["dev"]
    for line in wanted:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.specifier.contains(pinned[requirement.name]), line
        else:
            assert requirement.name not in pinned, line


def test_the_dev_lock_holds_the_versions_of_the_other() -> None:
    def versions(lock: str) -> set[str]:
        # Without markers: on some platforms only the tools of development need a package.
        return {f"{name} {version}" for name, version, _ in pins(lock)}

    assert versions("requirements.lock") <= versions("requirements-dev.lock")


def test_every_pin_has_hashes() -> None:
    for lock in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / lock).read_text(encoding="utf-8")
        assert len(re.findall(r"^\S+==.*\\\n    --hash=sha256:", text, re.M)) == len(pins(lock)) > 0


def test_every_direct_dependency_is_explained(project: dict[str, Any]) -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| ([\w-]+) \|", text, re.MULTILINE))
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {Requirement(line).name for line in lines} <= rows


def test_ins_01_the_prebuilt_index_is_in_the_first_line_of_the_install_page() -> None:
    first = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").splitlines()[0]
    assert "https://abetlen.github.io/llama-cpp-python/whl/cpu" in first


def test_ci_runs_the_test_command_of_the_readme() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert run.read_text(encoding="utf-8").splitlines()[-1] == "exec make test"
