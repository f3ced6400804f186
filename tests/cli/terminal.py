"""The command in a real terminal: typed to, read from, interrupted by its Ctrl-C."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT

if sys.platform != "win32":
    import fcntl
    import pty
    import termios

CTRL_C, CTRL_D = "\x03", "\x04"
ROWS, COLUMNS = 24, 80
_TIMEOUT_S = 60.0
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")


def environment(directory: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Without the user's own settings."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FERRUM_")}
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "XDG_DATA_HOME": str(directory / "data"),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "TERM": "xterm-256color",
        **(extra or {}),
    }


def run(
    *arguments: str, cwd: Path, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command without a terminal, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ferrum_local", *arguments],
        cwd=cwd, env=environment(cwd, env), input=stdin, capture_output=True, encoding="utf-8",
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip


def standing_in(directory: Path, name: str, body: str) -> dict[str, str]:
    """The environment in which ``name`` is another package, whose import runs ``body``: native
    code that crashes or never returns."""
    package = directory / "standing-in" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"import os, signal, sys, time\n{body}\n")
    return {"PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}"}


class Terminal:
    """``ferrum-local`` as the foreground process of a terminal of its own; a context manager."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ferrum_local", *arguments],
            cwd=cwd, env=environment(cwd, env), stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._unread = ""
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        if text == CTRL_C:  # readline shows its prompt a moment before it notices signals
            time.sleep(0.3)
        os.write(self._master, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\n")

    def read_word(self) -> str:
        """The first word that comes, whole or its beginning."""
        deadline = time.monotonic() + _TIMEOUT_S
        while (found := re.search(r"\w+", self._plain())) is None:
            assert self._read(deadline - time.monotonic()), f"no word in …{self.seen[-500:]!r}"
        return found[0]

    def read_until(self, text: str) -> str:
        """What came up to ``text``, without escape sequences; the rest stays for the next call."""
        deadline = time.monotonic() + _TIMEOUT_S
        while text not in self._plain():
            assert self._read(deadline - time.monotonic()), f"no {text!r} in …{self.seen[-500:]!r}"
        before, _, self._unread = self._plain().partition(text)
        return before

    def wait(self) -> int:
        """Read to the end. :returns: the exit code."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(_TIMEOUT_S)

    def _plain(self) -> str:
        return _ESCAPES.sub("", self._unread)

    def _read(self, timeout_s: float) -> bool:
        """:returns: False at the end, or when the time is over."""
        if not select.select([self._master], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the other side open any more
            return False
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        self._unread += text
        self.seen += text
        return bool(data)
