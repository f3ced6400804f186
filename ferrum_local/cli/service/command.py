"""``ferrum-local service install|uninstall|status``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ferrum_local.errors import FerrumError
from ferrum_local.whole_files import replacing

_SECRET_FLAGS = ("--api-key",)
_NOT_RUNNING = 3  # as systemctl status


@click.group(name="service", short_help="Start the server whenever you log in.")
def service_command() -> None:
    """Have systemd (Linux) or launchd (macOS) start the server for you."""


@service_command.command(
    name="install",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--dry-run", is_flag=True, help="Print the file; write and start nothing.")
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION OF SERVE]...")
def install_command(dry_run: bool, serve_options: tuple[str, ...]) -> int:
    """Start the server now and at every login, with these options of `serve`.

    It runs in the directory you are in, as if you had typed it here: relative paths and a
    ferrum.toml in it count. FERRUM_* variables do not: give options, or write ferrum.toml.

    \b
    Examples:
      ferrum-local service install
      ferrum-local service install --dry-run --model qwen3-4b.gguf --port 9000
    """
    from ferrum_local.cli.own_command import own_command
    from ferrum_local.cli.service.managers import manager_for
    from ferrum_local.cli.service.units import ServiceCommand

    _check(serve_options)
    manager = manager_for(os.environ)
    command = ServiceCommand((*own_command(), "serve", *serve_options), str(Path.cwd()))
    text = manager.text(command)
    if dry_run:
        click.echo(text, nl=False)
        return 0
    _write(manager.path, text)
    click.echo(f"Wrote {manager.path}")
    manager.start()
    click.echo("The server is started, now and at every login.")
    for hint in manager.hints:
        click.echo(hint)
    for name in sorted(os.environ):
        if name.startswith("FERRUM_"):
            click.echo(f"Note: {name} is set here, and the service will not see it.", err=True)
    return 0


def _check(serve_options: tuple[str, ...]) -> None:
    """What ``serve`` would refuse is refused now, not by a service in the background."""
    from ferrum_local.cli.serve import serve_command
    from ferrum_local.config import resolve

    for word in serve_options:
        if word.partition("=")[0] in _SECRET_FLAGS:
            raise click.UsageError(
                "A key in a service's command line can be read by every program; put it into a "
                "file and give that with --api-key-file."
            )
    context = serve_command.make_context("serve", list(serve_options))
    config = context.params.pop("config")
    if context.params.pop("print_config"):
        raise click.UsageError("--print-config does not serve.")
    resolve(context.params, {}, cwd=Path.cwd(), config=config)


def _write(path: Path, text: str) -> None:
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise FerrumError(f"{path} cannot be written: {error.strerror}.") from None


@service_command.command(name="uninstall")
def uninstall_command() -> int:
    """Stop the service and remove its file."""
    from ferrum_local.cli.service.managers import manager_for

    manager = manager_for(os.environ)
    if not manager.path.exists():
        click.echo("No service is installed.")
        return 0
    manager.stop()
    manager.path.unlink()
    manager.after_removal()
    click.echo(f"Stopped; {manager.path} is removed.")
    return 0


@service_command.command(name="status")
def status_command() -> int:
    """Say whether the service is installed and runs; the exit code is 3 if it does not."""
    from ferrum_local.cli.service.managers import manager_for

    manager = manager_for(os.environ)
    if not manager.path.exists():
        click.echo("Not installed. `ferrum-local service install` does it.")
        return _NOT_RUNNING
    is_running, word = manager.state()
    click.echo(f"{word} ({manager.path})")
    if not is_running:
        for hint in manager.hints[:1]:
            click.echo(hint, file=sys.stderr)
    return 0 if is_running else _NOT_RUNNING
