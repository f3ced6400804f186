"""The command group, its help, and how errors become one line and an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import cast

import click

from ferrum_local import __version__
from ferrum_local.errors import ConfigError, FerrumError, ModelLoadError
from ferrum_local.server.exit_codes import ExitCode

EPILOG = """\
Begin with:
  ferrum-local doctor    is everything here
  ferrum-local chat      talk with a model
  ferrum-local serve     let your programs talk with it

ferrum-local COMMAND --help shows the options of a command.
"""
# A command's module is imported when it is asked for: all of them take longer than a start should.
COMMANDS = {
    "bench": "bench.command:bench_command",
    "chat": "chat.command:chat_command",
    "completion": "completion:completion_command",
    "doctor": "doctor.command:doctor_command",
    "embed": "embed:embed_command",
    "models": "models:models_group",
    "ps": "ps:ps_command",
    "search": "search:search_command",
    "serve": "serve:serve_command",
    "service": "service.command:service_command",
    "speak": "speak:speak_command",
    "talk": "talk:talk_command",
    "transcribe": "transcribe:transcribe_command",
}
# What is in no section comes last, under "Other".
SECTIONS = {
    "Use a model": ("chat", "talk", "transcribe", "speak", "embed", "search"),
    "Serve": ("serve", "ps", "service"),
    "Look after it": ("doctor", "models", "bench", "completion"),
}


class _Commands(Mapping[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(importlib.import_module(f"ferrum_local.cli.{module}"), attribute)
        return cast(click.Command, found)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS  # Mapping's own would import it


class _Sections(click.Group):
    """The commands, whose help lists them by what they are for."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rest = [name for name in self.list_commands(context)
                if not any(name in names for names in SECTIONS.values())]  # fmt: skip
        for title, names in (*SECTIONS.items(), ("Other", rest)):
            commands = [(name, self.get_command(context, name)) for name in names]
            rows = [(name, command.get_short_help_str(limit=80)) for name, command in commands
                    if command is not None and not command.hidden]  # fmt: skip
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        # Click would indent the epilog and re-wrap it; it is laid out already.
        formatter.write("\n" + EPILOG)


@click.group(
    name="ferrum-local",
    cls=_Sections,
    commands=cast(MutableMapping[str, click.Command], _Commands()),  # Click only reads it
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="ferrum-local", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """A local AI server that any OpenAI client can talk to."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


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
