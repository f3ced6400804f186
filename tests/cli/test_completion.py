"""Shell completion, asked for as the shells' scripts ask."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ferrum_local.cli.completion import SHELLS
from tests.cli.terminal import environment, run


def completed(words: str, tmp_path: Path) -> list[str]:
    """What bash is offered for the last of ``words``."""
    env = {
        "_FERRUM_LOCAL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return run(cwd=tmp_path, env=env).stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_asks_this_command(shell: str, tmp_path: Path) -> None:
    done = run("completion", shell, cwd=tmp_path)
    assert done.returncode == 0 and "ferrum-local" in done.stdout
    assert f"_FERRUM_LOCAL_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell):
        checked = subprocess.run(
            [shell, "-n"], input=done.stdout, text=True, capture_output=True, check=False,
            env=environment(tmp_path),
        )  # fmt: skip
        assert (checked.returncode, checked.stderr) == (0, "")


def test_commands_flags_and_files_are_completed(tmp_path: Path) -> None:
    assert completed("ferrum-local do", tmp_path) == ["plain,doctor"]
    assert "plain,--max-tokens" in completed("ferrum-local chat --m", tmp_path)
    assert completed("ferrum-local serve --model ", tmp_path) == ["file,"]
    assert completed("ferrum-local service un", tmp_path) == ["plain,uninstall"]


def test_an_unknown_shell_is_told_which_there_are(tmp_path: Path) -> None:
    done = run("completion", "tcsh", cwd=tmp_path)
    assert done.returncode == 2 and "'bash', 'zsh', 'fish'" in done.stderr
