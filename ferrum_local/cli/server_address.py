"""Which server a command talks to: ``--url`` and ``--api-key``, else the one of the settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ferrum_local.cli.client import ServerClient
    from ferrum_local.config import Resolved

_Command = TypeVar("_Command", bound=Callable[..., Any])
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def server_options(what: str) -> Callable[[_Command], _Command]:
    """``--url`` and ``--api-key``.

    :param what: the help of ``--url``.
    """

    def decorate(command: _Command) -> _Command:
        command = click.option(
            "--api-key", metavar="KEY", help="The key of that server.  [as the settings say]"
        )(command)
        return click.option("--url", metavar="URL", help=what)(command)

    return decorate


def connect(
    url: str | None, api_key: str | None, *, answer_timeout_s: float | None = None
) -> ServerClient:
    """:param answer_timeout_s: None: as long as a model may take.
    :raises ConfigError: the settings cannot be read.
    """
    from ferrum_local.cli.client import ANSWER_TIMEOUT_S, ServerClient
    from ferrum_local.config import resolve

    resolved = resolve({}, os.environ, cwd=Path.cwd())
    if url is None:
        url = configured_url(resolved)
    client = ServerClient(
        url, api_key=api_key, answer_timeout_s=answer_timeout_s or ANSWER_TIMEOUT_S
    )
    if api_key is None:
        client.api_key = configured_key(resolved, client.host)
    return client


def configured_key(resolved: Resolved, host: str | None) -> str | None:
    """The key of the settings: it is of this machine's server, and goes to no other machine.

    :raises ConfigError: the file of keys cannot be used.
    """
    from ferrum_local.config.access import first_api_key

    return first_api_key(resolved) if host in _LOOPBACK else None


def configured_url(resolved: Resolved) -> str:
    """Where ``serve`` would listen."""
    host = resolved.settings.host.strip("[]")
    host = _WILDCARDS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{resolved.settings.port}"
