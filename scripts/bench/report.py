"""Rows of the result table, their verdicts, and the table as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

COLUMNS = ("measure", "ferrum-local", "against", "its figure", "compared", "target", "")


@dataclasses.dataclass(frozen=True)
class Target:
    """``sign``: ``≤`` or ``≥``."""

    sign: str
    limit: float
    unit: str = ""

    def holds(self, value: float) -> bool:
        return value <= self.limit if self.sign == "≤" else value >= self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g} {self.unit}".rstrip()


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    :param ours: our figure, in ``unit``.
    :param against: what it is compared with, and ``other``, its figure.
    :param compared: the ratio or difference that the target is about, in the target's unit.
    """

    measure: str
    unit: str
    ours: float
    against: str
    other: float
    compared: float
    target: Target | None = None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "pass" if self.target.holds(self.compared) else "**miss**"

    def cells(self) -> tuple[str, ...]:
        unit = self.target.unit if self.target else ""
        return (
            self.measure,
            f"{number(self.ours)} {self.unit}".rstrip(),
            self.against,
            f"{number(self.other)} {self.unit}".rstrip(),
            f"{number(self.compared)} {unit}".rstrip(),
            str(self.target or ""),
            self.verdict,
        )


def number(value: float) -> str:
    """Three significant digits, never in exponent form."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line(row.cells()) for row in rows]
    return "\n".join(lines)


def fact_list(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
