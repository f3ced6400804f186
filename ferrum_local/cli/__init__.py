"""The ``ferrum-local`` command. One module here for each subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    Nothing but ``sys`` is imported outside the ``try``, so that Ctrl-C while modules
    are loading ends as quietly as any other.
    """
    try:
        from ferrum_local.processes import is_frozen, run_if_helper

        # A frozen program starts itself again for helper processes (LIFE-02); such a start
        # must be recognised before the arguments are looked at.
        if is_frozen():
            import multiprocessing

            multiprocessing.freeze_support()
        run_if_helper()
        _use_utf8()
        from ferrum_local.cli.app import run

        code = run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        _die_on_next_interrupt()
        code = EXIT_INTERRUPTED
        _leave_if_threads_run_on(code)
    sys.exit(code)


def _use_utf8() -> None:
    """A pipe on Windows is cp1252 by default, and one emoji in a path would end the program."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        # None: pythonw has no streams, tests replace them. A terminal knows what keys mean.
        if reconfigure is not None and not (stream is sys.stdin and stream.isatty()):
            reconfigure(encoding="utf-8", errors="replace")


def _leave_if_threads_run_on(code: int) -> None:
    """A thread within native code (a model being loaded) would hold up the exit for as long as
    that takes: it is not waited for."""
    import os
    import threading

    if threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)


def _die_on_next_interrupt() -> None:
    """An impatient second Ctrl-C during the exit must not print a traceback."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
