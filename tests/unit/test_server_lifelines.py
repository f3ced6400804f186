"""Whom a server that belongs to another program watches."""

from __future__ import annotations

import pytest

from ferrum_local.server.lifelines import first_above

SCRIPTS = r"C:\app\.venv\Scripts"


@pytest.mark.parametrize(
    ("ancestors", "pid"),
    [
        ([(7, r"C:\Program Files\Chat\chat.exe"), (3, r"C:\Windows\explorer.exe")], 7),
        ([(9, SCRIPTS + r"\python.exe"), (7, r"C:\Program Files\Chat\chat.exe")], 7),
        ([(9, r"c:\APP\.venv\scripts\Python.EXE"), (8, SCRIPTS + r"\ferrum-local.exe"),
          (7, r"C:\chat.exe")], 7),
        ([(9, SCRIPTS + r"\python.exe")], 1),
        ([], 1),
    ],
)  # fmt: skip
def test_life_01_launchers_of_a_virtual_environment_are_looked_through(
    ancestors: list[tuple[int, str]], pid: int
) -> None:
    assert first_above(ancestors, SCRIPTS, default=1) == pid
