"""Starts the system's C++ runtime before a library that carries another one is loaded.

usearch carries its own libstdc++ and shares part of it with the whole process (unique symbols).
Whichever runtime first needs its locale numbers the shared facets; the other one then numbers its
own over them. llama.cpp came second when usearch was imported first, and no vocabulary could be
read any more: ``std::bad_cast``.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

_CLASSIC_LOCALE = "_ZNSt6locale7classicEv"  # std::locale::classic(), which sets all facets up


def start() -> None:
    """Let libstdc++ number its facets now; call it before ``import usearch``."""
    if sys.platform != "linux":
        return  # macOS and Windows bind a library's symbols to the library that it named
    # No libstdc++, or one without this function: nothing that could clash.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libstdc++.so.6")[_CLASSIC_LOCALE]()
