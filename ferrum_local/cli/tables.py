"""Tables for people: by rich on a terminal, aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print to stdout. A terminal that is too narrow gets lines that wrap within their cells."""
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # A pipe has no width: whoever reads it wants every line whole.
    width = None if sys.stdout.isatty() else 10_000
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    print("\n".join(line for line in lines if line))


def amount(n_bytes: float) -> str:
    """``1536`` as ``1.5 KiB``."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while n_bytes >= 1024 and power < len(units) - 1:
        n_bytes /= 1024
        power += 1
    return f"{n_bytes:.1f} {units[power]}" if power else f"{n_bytes:.0f} B"
