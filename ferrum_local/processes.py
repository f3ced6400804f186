"""Starts this program again, for one function in a process of its own; works frozen, too.

Python runs such a function with ``-c``. A program frozen with PyInstaller has no Python to run,
only itself: ``run_if_helper``, called first thing in its ``main``, knows such a start.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

HELPER_FLAG = "--run-helper"  # of a frozen program, before anything else; not for people
_PACKAGE = "ferrum_local"
_MAIN_MODULE = f"{_PACKAGE}.cli"
_LIBRARY_PATH = "LD_LIBRARY_PATH"
# The new process gets this one's import path; until it has it, it imports nothing but built-ins.
_BOOT = (
    "import sys, os; sys.path[:] = sys.argv.pop().split(os.pathsep); "
    f"from {_PACKAGE}.processes import run_helper; run_helper(sys.argv[1:])"
)


def can_start_itself() -> bool:
    """Whether ``helper_command`` leads anywhere.

    Not where ferrum-local is part of another frozen program: that would start itself anew.
    """
    if not sys.executable:
        return False
    main = getattr(sys.modules.get("__main__"), "main", None)
    return not is_frozen() or getattr(main, "__module__", None) == _MAIN_MODULE


def helper_command(function: str, *arguments: str) -> list[str]:
    """The command that calls ``function``, a ``module:name`` of this package, and exits."""
    if is_frozen():
        return [sys.executable, HELPER_FLAG, function, *arguments]
    return [sys.executable, "-c", _BOOT, function, *arguments, os.pathsep.join(sys.path)]


def run_if_helper() -> None:
    """Do what ``helper_command`` asked for, if this start is one of its; then never return."""
    if is_frozen() and sys.argv[1:2] == [HELPER_FLAG]:
        run_helper(sys.argv[2:])


def run_helper(command: list[str]) -> NoReturn:
    """:param command: the function and its arguments."""
    function, *arguments = command or [""]
    module, _, name = function.partition(":")
    if module.split(".")[0] != _PACKAGE or not name:
        sys.exit(f"{HELPER_FLAG} is for the program's own use")
    try:
        code = getattr(importlib.import_module(module), name)(*arguments)
    except Exception:
        import traceback

        # As Python does it; a frozen program's start-up would add last words of its own.
        traceback.print_exc()
        code = 1
    sys.exit(code)


def environment_for_others() -> dict[str, str]:
    """The environment for programs that are not ours.

    The libraries that a frozen program brings along are not theirs: its start-up puts them first,
    and the path that was there before under another name.
    """
    env = dict(os.environ)
    if is_frozen():
        original = env.pop(f"{_LIBRARY_PATH}_ORIG", None)
        env.pop(_LIBRARY_PATH, None)
        if original is not None:
            env[_LIBRARY_PATH] = original
    return env


def is_frozen() -> bool:
    """Whether this is a program that holds its Python, made by PyInstaller and the like."""
    return bool(getattr(sys, "frozen", False))
