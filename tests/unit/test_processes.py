"""Helper processes, started by Python and by a frozen program."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ferrum_local import cli
from ferrum_local.processes import (
    HELPER_FLAG,
    can_start_itself,
    environment_for_others,
    helper_command,
    run_if_helper,
)

FUNCTION = "ferrum_local.languages:language_code"  # takes a text and gives one


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process as PyInstaller would have made it, with the command as its main module."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/opt/ferrum-local")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(main=cli.main))
    return monkeypatch


def test_python_runs_the_function_in_another_process() -> None:
    done = subprocess.run(
        helper_command(FUNCTION, "German"), capture_output=True, text=True, check=False
    )
    # What a function returns is the exit code, or the last words.
    assert (done.stdout, done.stderr, done.returncode) == ("", "de\n", 1)


def test_life_02_a_frozen_program_runs_itself(frozen: pytest.MonkeyPatch) -> None:
    command = helper_command(FUNCTION, "German")
    assert command == ["/opt/ferrum-local", HELPER_FLAG, FUNCTION, "German"]
    frozen.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == "de"


@pytest.mark.parametrize("argument", ["os:getcwd", "ferrum_localized:x", "ferrum_local", ""])
def test_only_functions_of_this_package_are_run(frozen: pytest.MonkeyPatch, argument: str) -> None:
    frozen.setattr(sys, "argv", ["/opt/ferrum-local", HELPER_FLAG, argument])
    with pytest.raises(SystemExit, match="for the program's own use"):
        run_if_helper()


def test_the_last_words_are_those_of_the_error(
    frozen: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen.setattr(sys, "argv", helper_command("ferrum_local.languages:no_such_name"))
    with pytest.raises(SystemExit) as ended:
        run_if_helper()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("AttributeError: ")


def test_other_starts_are_left_alone(frozen: pytest.MonkeyPatch) -> None:
    for arguments in ([], ["serve", HELPER_FLAG, FUNCTION]):
        frozen.setattr(sys, "argv", ["/opt/ferrum-local", *arguments])
        run_if_helper()


def test_life_02_part_of_another_frozen_program_it_does_not_start_that(
    frozen: pytest.MonkeyPatch,
) -> None:
    assert can_start_itself()
    for main in (SimpleNamespace(main=print), SimpleNamespace()):
        frozen.setitem(sys.modules, "__main__", main)
        assert not can_start_itself()


def test_programs_of_the_system_do_not_get_the_libraries_of_a_frozen_one(
    frozen: pytest.MonkeyPatch,
) -> None:
    frozen.setenv("LD_LIBRARY_PATH", "/opt/_internal")
    assert "LD_LIBRARY_PATH" not in environment_for_others()
    frozen.setenv("LD_LIBRARY_PATH_ORIG", "/usr/local/lib")
    env = environment_for_others()
    assert env["LD_LIBRARY_PATH"] == "/usr/local/lib" and "LD_LIBRARY_PATH_ORIG" not in env
    frozen.setattr(sys, "frozen", False)
    assert environment_for_others() == dict(os.environ)
