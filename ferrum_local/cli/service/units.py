"""What systemd and launchd read: text from a command, nothing else."""

from __future__ import annotations

import plistlib

import msgspec

SYSTEMD_NAME = "ferrum-local.service"
LAUNCHD_LABEL = "ferrum-local.server"
_STOP_TIMEOUT_S = 40  # longer than the server takes to drain
_USAGE_EXIT_CODE = 2  # wrong settings: starting again would not help


class ServiceCommand(msgspec.Struct, frozen=True):
    """What is run, and in which directory: relative paths and ./ferrum.toml count from there."""

    arguments: tuple[str, ...]
    directory: str


def systemd_unit(command: ServiceCommand) -> str:
    """A user unit, as ``man systemd.service`` describes it."""
    return f"""\
[Unit]
Description=ferrum-local, a local AI server
After=network.target

[Service]
Type=exec
WorkingDirectory={_escaped_percent(command.directory)}
ExecStart=:{" ".join(map(systemd_quoted, command.arguments))}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus={_USAGE_EXIT_CODE}
TimeoutStopSec={_STOP_TIMEOUT_S}

[Install]
WantedBy=default.target
"""


def systemd_quoted(argument: str) -> str:
    """One argument of a command line: quoted, and nothing in it expanded.

    ``%`` begins a specifier even within quotes; the colon before the command keeps ``$`` from
    being a variable (``man systemd.service``, "Command lines").
    """
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"')
    for character, code in (("\n", "\\n"), ("\t", "\\t")):
        escaped = escaped.replace(character, code)
    return f'"{_escaped_percent(escaped)}"'


def _escaped_percent(text: str) -> str:
    return text.replace("%", "%%")


def launchd_plist(command: ServiceCommand, log_path: str) -> str:
    """A user agent, as ``man launchd.plist`` describes it."""
    agent = {
        "Label": LAUNCHD_LABEL,
        "ProgramArguments": list(command.arguments),
        "WorkingDirectory": command.directory,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": _STOP_TIMEOUT_S,
        "StandardErrorPath": log_path,
    }
    return plistlib.dumps(agent, sort_keys=False).decode()
