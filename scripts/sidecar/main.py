"""What a frozen ferrum-local runs. Outside the package, whose ``types.py`` would hide Python's."""

from __future__ import annotations

from ferrum_local.cli import main

if __name__ == "__main__":
    main()
