"""Run a long command with its output in a log file and a sign of life on the screen.

Standard library only, and kept to the syntax of Python 3.8: it runs before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Callable, Mapping, Sequence  # noqa: UP035 - Python 3.8

#: What a line of output says about the progress: (done, total), or None when it says nothing.
LineParser = Callable[[str], "tuple[int, int] | None"]

LOG_TAIL_LINES = 15
BAR_WIDTH = 28
REDRAW_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 20.0  # where the output is no terminal: a line this often


class CommandFailed(Exception):
    """A command ended with an error; its whole output is in ``log``.

    :param returncode: as :mod:`subprocess` gives it, negative for a signal.
    """

    def __init__(self, command: Sequence[str], returncode: int, log: Path) -> None:
        super().__init__(f"{Path(command[0]).name} ended with code {returncode}")
        self.returncode = returncode
        self.log = log

    def tail(self) -> str:
        """The last lines of the log, indented."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line[:300]}" for line in lines[-LOG_TAIL_LINES:])


def format_elapsed(seconds: float) -> str:
    """``75.2`` becomes ``1:15``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"


class Progress:
    """A bar that is redrawn on a terminal, and a line every ~20 s elsewhere.

    :param label: what is being done, a few words.
    :param unit: what is counted, after the numbers.
    """

    def __init__(
        self,
        label: str,
        unit: str = "",
        *,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._unit = f" {unit}" if unit else ""
        self._stream = stream if stream is not None else sys.stdout
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._started_s = self._last_shown_s = clock()
        self._done = self._total = 0
        self._drawn = False

    def elapsed_s(self) -> float:
        return self._clock() - self._started_s

    def update(self, done: int, total: int) -> None:
        """Take new counts; they are shown at the next :meth:`tick`."""
        self._done, self._total = done, total

    def tick(self) -> None:
        """Show the state when it is time to; call it about once a second."""
        interval_s = REDRAW_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S
        now_s = self._clock()
        if now_s - self._last_shown_s < interval_s:
            return
        self._last_shown_s = now_s
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + self._line()[:width].ljust(width))
            self._drawn = True
        else:
            self._stream.write(self._line() + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Remove the bar from the terminal, so that the next line starts clean."""
        if self._drawn:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + " " * width + "\r")
            self._stream.flush()
            self._drawn = False

    def _line(self) -> str:
        elapsed = format_elapsed(self.elapsed_s())
        if not self._total:
            return f"  {self._label}: working, {elapsed}"
        filled = BAR_WIDTH * min(self._done, self._total) // self._total
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        counts = f"{self._done}/{self._total}{self._unit}"
        return f"  {self._label} [{bar}] {counts}, {elapsed}"


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    progress: Progress,
    parse: LineParser | None = None,
    poll: Callable[[], tuple[int, int] | None] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep_fds: Sequence[int] = (),
) -> None:
    """Run ``command`` with its output appended to ``log``, showing ``progress`` meanwhile.

    :param parse: reads counts out of each line of output.
    :param poll: gives counts about once a second, for commands that print none.
    :param keep_fds: file descriptors that the command inherits (POSIX only).
    :raises CommandFailed: when it ends with another code than 0.

    An exception here (Ctrl-C) ends the command with everything it started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    on_posix = os.name == "posix"
    with log.open("a", encoding="utf-8") as log_file:
        log_file.write(f"$ {' '.join(map(str, command))}\n")
        log_file.flush()
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            # Its own group: an interruption then ends compilers and linkers too.
            start_new_session=on_posix,
            pass_fds=tuple(keep_fds) if on_posix else (),
            encoding="utf-8",
            errors="replace",
        )

        def drain() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                log_file.write(line)
                counts = parse(line) if parse else None
                if counts:
                    progress.update(*counts)

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        try:
            while reader.is_alive():
                reader.join(REDRAW_INTERVAL_S)
                counts = poll() if poll else None
                if counts:
                    progress.update(*counts)
                progress.tick()
            returncode = process.wait()
        except BaseException:
            _end_with_children(process)
            reader.join(5)
            raise
        finally:
            progress.close()
    if returncode != 0:
        raise CommandFailed(command, returncode, log)


def stop_on_sigterm() -> None:
    """Make SIGTERM end this program as Ctrl-C does, together with what it started."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _end_with_children(process: subprocess.Popen[str]) -> None:
    if os.name != "posix":
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    except ProcessLookupError:
        process.wait()
