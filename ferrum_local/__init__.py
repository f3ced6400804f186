"""ferrum-local: a local AI server that any OpenAI client can talk to.

The public surface is small: ``ferrum-local serve`` for people and
:class:`ferrum_local.HttpServer` for Python programs that host the server
inside their own process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# ONNX Runtime 1.32 and later tell Microsoft of their use, over HTTPS and from native code, unless
# this is set before they are loaded. Nothing here tells anybody anything.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

if TYPE_CHECKING:
    from ferrum_local.server.http_server import HttpServer as HttpServer

__all__ = ["HttpServer", "__version__"]


def __getattr__(name: str) -> object:
    # HttpServer pulls in Flask; ``ferrum-local --help`` must not pay for that.
    if name == "HttpServer":
        from ferrum_local.server.http_server import HttpServer

        return HttpServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
