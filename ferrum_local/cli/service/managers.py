"""The service managers of Linux and macOS: where their files are, and what they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ferrum_local.cli.service.units import (
    LAUNCHD_LABEL,
    SYSTEMD_NAME,
    ServiceCommand,
    launchd_plist,
    systemd_unit,
)
from ferrum_local.errors import FerrumError
from ferrum_local.processes import environment_for_others


class ServiceManager(Protocol):
    """One of the two."""

    @property
    def path(self) -> Path:
        """Of the service's file."""
        ...

    def text(self, command: ServiceCommand) -> str: ...

    def start(self) -> None:
        """Now, and at every login.

        :raises FerrumError: with what the manager said.
        """
        ...

    def stop(self) -> None:
        """Now and for good; does nothing for a service that does not run."""
        ...

    def after_removal(self) -> None: ...

    def state(self) -> tuple[bool, str]:
        """Whether it runs, and the manager's word for it."""
        ...

    @property
    def hints(self) -> tuple[str, ...]:
        """What a person may want to know once it is installed."""
        ...


def manager_for(env: Mapping[str, str], platform: str = sys.platform) -> ServiceManager:
    """:raises FerrumError: there is none that this program could use."""
    if platform == "darwin":
        return Launchd(Path.home())
    if platform == "win32":
        raise FerrumError(
            "Windows has no services of a user. Put a shortcut to `ferrum-local serve` into the "
            "folder that Win+R, shell:startup opens; it is started when you log in."
        )
    return Systemd(env)


class Systemd:
    """systemd's instance of the user; no rights of root are needed."""

    def __init__(self, env: Mapping[str, str]) -> None:
        config = env.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        self.path = Path(config) / "systemd" / "user" / SYSTEMD_NAME

    def text(self, command: ServiceCommand) -> str:
        return systemd_unit(command)

    def start(self) -> None:
        _told("systemctl", "--user", "daemon-reload")
        _told("systemctl", "--user", "enable", SYSTEMD_NAME)
        _told("systemctl", "--user", "restart", SYSTEMD_NAME)  # with the new file, if it ran

    def stop(self) -> None:
        _told("systemctl", "--user", "disable", "--now", SYSTEMD_NAME)

    def after_removal(self) -> None:
        _told("systemctl", "--user", "daemon-reload")

    def state(self) -> tuple[bool, str]:
        done = _run("systemctl", "--user", "is-active", SYSTEMD_NAME)
        return done.returncode == 0, done.stdout.strip() or done.stderr.strip() or "unknown"

    @property
    def hints(self) -> tuple[str, ...]:
        return (
            f"Its log: journalctl --user -u {SYSTEMD_NAME}",
            "To have it run before you log in: loginctl enable-linger",
        )


class Launchd:
    """launchd's domain of the user who is logged in."""

    def __init__(self, home: Path) -> None:
        self.path = home / "Library" / "LaunchAgents" / f"{LAUNCHD_LABEL}.plist"
        self._log_path = home / "Library" / "Logs" / "ferrum-local.log"
        self._domain = f"gui/{os.getuid()}" if hasattr(os, "getuid") else "gui"

    def text(self, command: ServiceCommand) -> str:
        return launchd_plist(command, str(self._log_path))

    def start(self) -> None:
        self.stop()
        _told("launchctl", "bootstrap", self._domain, str(self.path))

    def stop(self) -> None:
        if self.state()[0]:
            _told("launchctl", "bootout", f"{self._domain}/{LAUNCHD_LABEL}")

    def after_removal(self) -> None:
        """launchd keeps nothing of a service that was booted out."""

    def state(self) -> tuple[bool, str]:
        done = _run("launchctl", "print", f"{self._domain}/{LAUNCHD_LABEL}")
        return done.returncode == 0, "loaded" if done.returncode == 0 else "not loaded"

    @property
    def hints(self) -> tuple[str, ...]:
        return (f"Its log: {self._log_path}",)


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(program) is None:
        raise FerrumError(f"There is no {program} here, so no service can be managed.")
    return subprocess.run(
        [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        env=environment_for_others(), check=False,
    )  # fmt: skip


def _told(program: str, *arguments: str) -> None:
    done = _run(program, *arguments)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"code {done.returncode}"
        raise FerrumError(f"`{' '.join((program, *arguments))}` failed: {said}")
