"""Texts made from the option table: ``--print-config`` and the reference in the docs.

``python -m ferrum_local.config.show docs/configuration.md`` brings the reference up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ferrum_local.config.options import GROUPS, OPTIONS, Option
from ferrum_local.config.resolve import Resolved
from ferrum_local.config.values import Value, to_toml

MASK = "********"
BEGIN, END = "<!-- options:begin -->", "<!-- options:end -->"


def print_config(resolved: Resolved) -> str:
    """Every option, its value and its source, as TOML that could be saved as ``ferrum.toml``.

    Keys are masked, and commented out so that the mask is never taken for a key.
    """
    rows = []
    for option in OPTIONS:
        value: Value = getattr(resolved.settings, option.field)
        if option.secret and value:
            line = f"# {option.toml_key} = {to_toml((MASK,) * _count(value))}"
        elif value is None and option.kind.none_word is None:
            line = f"# {option.toml_key} is not set"
        else:
            line = f"{option.toml_key} = {to_toml(value, option.kind.none_word)}"
        rows.append((line, str(resolved.sources[option.field])))
    width = min(max(len(line) for line, _ in rows), 48)
    return "\n".join(f"{line.ljust(width)}  # {_one_line(source)}" for line, source in rows)


def markdown_table() -> str:
    """The reference of all options, by group."""
    lines = []
    for group in GROUPS:
        lines += [
            f"### {group}",
            "",
            "| flag | variable | in `ferrum.toml` | default | what it does |",
            "|---|---|---|---|---|",
        ]
        lines += [_markdown_row(option) for option in OPTIONS if option.group == group]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def default_text(option: Option) -> str:
    """The default as a person would type it; empty when there is none."""
    if option.default is None:
        return option.kind.none_word or ""
    if option.default == () or option.default is False:
        return ""
    return to_toml(option.default).strip('"')


def _markdown_row(option: Option) -> str:
    metavar = f" {option.kind.metavar}" if option.kind.metavar else ""
    flag = f"`{option.flag}{metavar}`".replace("|", "\\|")
    if not option.kind.metavar:
        flag += f", `--no-{option.name}`"
    if option.many:
        flag += ", repeatable"
    default = default_text(option) or ("false" if option.default is False else "")
    shown_default = f"`{default}`" if default else ""
    cells = (flag, f"`{option.env}`", f"`{option.toml_key}`", shown_default, option.help)
    return "| " + " | ".join(cells) + " |"


def _count(value: Value) -> int:
    return len(value) if isinstance(value, tuple) else 1


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _update(path: Path) -> None:
    """Write the reference between its two marks in the file at ``path``."""
    text = path.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    path.write_text(f"{head}{BEGIN}\n{markdown_table()}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    _update(Path(sys.argv[1]))
