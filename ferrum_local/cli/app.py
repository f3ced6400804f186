"""The command group, its help, and how errors become one line and an exit code."""

from __future__ import annotations

import sys

import click

from ferrum_local import __version__
from ferrum_local.cli.embed import embed_command
from ferrum_local.cli.models import models_group
from ferrum_local.cli.serve import serve_command
from ferrum_local.cli.speak import speak_command
from ferrum_local.cli.transcribe import transcribe_command
from ferrum_local.errors import FerrumError, ModelLoadError
from ferrum_local.server.exit_codes import ExitCode


@click.group(
    name="ferrum-local",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="ferrum-local serve --help shows the options of a command.",
)
@click.version_option(__version__, prog_name="ferrum-local", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """A local AI server that any OpenAI client can talk to."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli.add_command(serve_command)
cli.add_command(embed_command)
cli.add_command(transcribe_command)
cli.add_command(speak_command)
cli.add_command(models_group)


def run(arguments: list[str]) -> int:
    """Run ``ferrum-local`` with ``arguments``; errors for people go to stderr in one line.

    :returns: the exit code: 0, 1 for a failure at run time, 2 for a setting or a model
        file that cannot be used.
    :raises KeyboardInterrupt: on Ctrl-C.
    """
    try:
        result = cli.main(arguments, prog_name="ferrum-local", standalone_mode=False)
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return _fail(_click_message(error), ExitCode.USAGE)
    except FerrumError as error:
        # Every ConfigError is found before the server starts; so are most bad model files.
        from ferrum_local.config import ConfigError

        is_usage = isinstance(error, (ConfigError, ModelLoadError))
        return _fail(error.message, ExitCode.USAGE if is_usage else ExitCode.FAILED)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print("Error: " + " ".join(message.split()), file=sys.stderr)
    return code


def _click_message(error: click.ClickException) -> str:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        return f"{message} Try '{context.command_path} --help'."
    return message
