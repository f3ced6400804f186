"""``ferrum-local service`` with a stand-in for systemctl, far from the user's own services."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum_local.cli.service.managers import manager_for
from ferrum_local.cli.service.units import (
    LAUNCHD_LABEL,
    SYSTEMD_NAME,
    ServiceCommand,
    launchd_plist,
    systemd_quoted,
    systemd_unit,
)
from ferrum_local.errors import FerrumError
from tests.cli.terminal import run

ODD = ("/opt/my apps/ferrum-local", "serve", "--model", 'a "b" $HOME 100% \\ ü.gguf')
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")


class Systemctl:
    """An executable of that name that notes what it is told and obeys ``answers``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "told"
        self.answer("")

    def answer(self, script: str) -> None:
        program = self.directory / "systemctl"
        program.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(self._log))}\n{script}\n')
        program.chmod(0o755)

    @property
    def told(self) -> list[str]:
        lines = self._log.read_text("utf-8").splitlines() if self._log.exists() else []
        return [line.removeprefix("--user ") for line in lines]


@pytest.fixture
def systemctl(tmp_path: Path) -> Systemctl:
    directory = tmp_path / "bin"
    directory.mkdir()
    return Systemctl(directory)


def service(
    systemctl: Systemctl, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    path = f"{systemctl.directory}{os.pathsep}{os.environ['PATH']}"
    return run(
        "service", *arguments, cwd=systemctl.directory.parent, env={"PATH": path, **(env or {})}
    )


@LINUX_ONLY
def test_a_service_is_installed_looked_at_and_removed(systemctl: Systemctl, tmp_path: Path) -> None:
    unit = tmp_path / "config" / "systemd" / "user" / SYSTEMD_NAME

    done = service(systemctl, "status")
    assert done.returncode == 3 and "Not installed" in done.stdout

    done = service(systemctl, "install", "--port", "0", env={"FERRUM_SLOTS": "2"})
    assert done.returncode == 0, done.stderr
    assert f"Wrote {unit}" in done.stdout
    assert "FERRUM_SLOTS is set here, and the service will not see it" in done.stderr
    assert '"serve" "--port" "0"\n' in unit.read_text("utf-8")
    assert systemctl.told == [
        "daemon-reload", f"enable {SYSTEMD_NAME}", f"restart {SYSTEMD_NAME}"]  # fmt: skip

    systemctl.answer("echo active")
    assert service(systemctl, "status").returncode == 0
    systemctl.answer("echo failed; exit 3")
    done = service(systemctl, "status")
    assert done.returncode == 3 and done.stdout.startswith("failed")

    systemctl.answer("")
    assert service(systemctl, "uninstall").returncode == 0
    assert not unit.exists() and not list(unit.parent.iterdir())
    assert systemctl.told[-2:] == [f"disable --now {SYSTEMD_NAME}", "daemon-reload"]
    assert "No service is installed" in service(systemctl, "uninstall").stdout


@LINUX_ONLY
def test_what_systemd_says_is_passed_on_in_one_line(systemctl: Systemctl) -> None:
    systemctl.answer("echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    done = service(systemctl, "install")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: `systemctl --user daemon-reload` failed: Failed to connect to bus: "
        "No medium found\n"
    )


@LINUX_ONLY
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "x"], "--port: expected a whole number"),
        (["--prot", "1"], "No such option"),
        (["--api-key", "secret"], "--api-key-file"),
        (["--api-key=secret"], "--api-key-file"),
    ],
)
def test_options_that_serve_would_refuse_are_refused_and_nothing_is_written(
    systemctl: Systemctl, tmp_path: Path, options: list[str], said: str
) -> None:
    done = service(systemctl, "install", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "secret" not in done.stderr
    assert not (tmp_path / "config").exists() and not systemctl.told


@LINUX_ONLY
def test_a_dry_run_prints_the_unit_and_does_nothing(systemctl: Systemctl, tmp_path: Path) -> None:
    done = service(systemctl, "install", "--dry-run")
    assert done.returncode == 0 and "ExecStart=" in done.stdout
    assert f"WorkingDirectory={tmp_path}\n" in done.stdout
    assert '\nExecStart=:"' in done.stdout  # the colon: no variables
    assert not (tmp_path / "config").exists() and not systemctl.told


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_a_unit_whose_paths_are_odd(tmp_path: Path) -> None:
    program = tmp_path / "my $HOME apps" / "ferrum ü 100%"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / SYSTEMD_NAME
    unit.write_text(systemd_unit(ServiceCommand((str(program), *ODD[1:]), str(program.parent))))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\r\0", codec="utf-8")))
def test_a_quoted_argument_is_one_line_and_reads_back(text: str) -> None:
    quoted = systemd_quoted(text)
    assert "\n" not in quoted and quoted[0] == quoted[-1] == '"'
    # Systemd's rules undone: specifiers, then C escapes.
    plain = quoted[1:-1].replace("%%", "%").replace("\\n", "\0n").replace("\\t", "\0t")
    assert len(plain) >= len(text)
    assert shlex.split(systemd_quoted(text.replace("\n", "").replace("\t", ""))) == [
        text.replace("\n", "").replace("\t", "").replace("%", "%%")
    ]


def test_launchd_reads_back_the_command() -> None:
    plist = plistlib.loads(launchd_plist(ServiceCommand(ODD, "/home/ü & me"), "/log").encode())
    assert plist["Label"] == LAUNCHD_LABEL
    assert plist["ProgramArguments"] == list(ODD)
    assert (plist["WorkingDirectory"], plist["StandardErrorPath"]) == ("/home/ü & me", "/log")
    assert plist["KeepAlive"] == {"SuccessfulExit": False}


def test_each_system_has_its_place_and_windows_an_honest_word() -> None:
    assert manager_for({"XDG_CONFIG_HOME": "/x"}, "linux").path == Path(
        "/x/systemd/user/ferrum-local.service"
    )
    assert manager_for({}, "darwin").path.parts[-3:] == (
        "Library", "LaunchAgents", "ferrum-local.server.plist")  # fmt: skip
    with pytest.raises(FerrumError, match="Windows has no services of a user"):
        manager_for({}, "win32")
