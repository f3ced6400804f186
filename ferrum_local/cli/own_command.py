"""How this program is started again, by a service or a shell."""

from __future__ import annotations

import sys
from pathlib import Path

from ferrum_local.processes import is_frozen


def own_command() -> list[str]:
    """The command without its arguments."""
    if is_frozen():
        return [sys.executable]  # a frozen program is its own interpreter
    name = "ferrum-local.exe" if sys.platform == "win32" else "ferrum-local"
    script = Path(sys.executable).with_name(name)
    # With ``-m`` the directory it runs in would come first on the path, whatever lies there.
    return [str(script)] if script.is_file() else [sys.executable, "-m", "ferrum_local"]
