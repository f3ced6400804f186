"""The exit codes of the command, for the programs that start it."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What ``ferrum-local serve`` ends with."""

    STOPPED = 0  # as asked: a signal, POST /shutdown, the parent's end
    FAILED = 1  # could not start, or did not stop in time
    USAGE = 2  # a setting or a model file cannot be used
    CRASHED = 3  # native code ended the serving process, while loading or again and again
    INTERRUPTED = 130  # at once on a second Ctrl-C; 128 + SIGINT, as shells report it
