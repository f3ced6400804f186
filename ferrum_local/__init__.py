"""ferrum-local: a local AI server that any OpenAI client can talk to.

The public surface is small: ``ferrum-local serve`` for people and
:class:`ferrum_local.HttpServer` for Python programs that host the server
inside their own process.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# ONNX Runtime 1.32 and later tell Microsoft of their use, over HTTPS and from native code, unless
# this is set before they are loaded. Nothing here tells anybody anything.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# libgomp's threads spin for long between the hundreds of barriers of one decode step. That is
# fastest on an idle machine, but beside any other busy process a step then takes 10 to 50 times
# as long (78 ms against 4,100 ms measured). A short spin keeps nearly all of the speed.
# The policy matters once more threads than cores have computed in this process (a second model,
# or a program that loads one itself): libgomp then spins 1,000 rounds, where without it 100 make
# every barrier a sleep, and steps take twice as long; so does Whisper, always. Both are read when
# a libgomp is loaded (llama.cpp and CTranslate2 have one each), so they have to be set before.
# On other systems OpenMP is another library, for which this policy means to spin for ever.
if sys.platform == "linux":
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("OMP_WAIT_POLICY", "active")

if TYPE_CHECKING:
    from ferrum_local.server.http_server import HttpServer as HttpServer

__all__ = ["HttpServer", "__version__"]


def __getattr__(name: str) -> object:
    # HttpServer pulls in Flask; ``ferrum-local --help`` must not pay for that.
    if name == "HttpServer":
        from ferrum_local.server.http_server import HttpServer

        return HttpServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
