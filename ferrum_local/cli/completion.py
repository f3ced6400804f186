"""``ferrum-local completion``: a script that has a shell complete commands, flags and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")


def complete_paths(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Have the shell offer files, for options whose values are checked later."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


@click.command(name="completion", short_help="Print a script for shell completion.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> int:
    """Print what makes SHELL complete this command. Put one of these into its start-up file:

    \b
      bash (~/.bashrc):                  eval "$(ferrum-local completion bash)"
      zsh (~/.zshrc):                    eval "$(ferrum-local completion zsh)"
      fish (~/.config/fish/config.fish): ferrum-local completion fish | source
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    name = root.info_name or "ferrum-local"
    kind = get_completion_class(shell)
    assert kind is not None  # click knows all of SHELLS
    complete = kind(root.command, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE")
    click.echo(complete.source())
    return 0
