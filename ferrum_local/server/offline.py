"""``--offline``: no connection of this process leaves the machine, whoever tries to make it.

Python reports each attempt before it is made (PEP 578); what raises there stops it. Native code
that opens sockets itself does not come by here: it is told not to by its own settings, and the
tests run the server in a network that leads nowhere to see that it obeys.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import sys
from collections.abc import Callable, MutableMapping

log = logging.getLogger("ferrum_local.server")

# What libraries take for: never go online. Set always, since serving fetches nothing.
LIBRARY_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
_CONNECTING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_RESOLVING = frozenset(
    {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}
)
_LOCAL_NAMES = frozenset({"localhost", "localhost.", ""})


class OfflineError(OSError):
    """A connection was refused because of ``--offline``."""


def keep_libraries_offline(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell libraries that know such a setting; before they are imported."""
    environment.update(LIBRARY_SETTINGS)


def refuse_connections() -> None:
    """For the rest of this process; there is no way back."""
    sys.addaudithook(make_hook(_report))


def make_hook(report: Callable[[str, str], None]) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that raises :class:`OfflineError` for what would leave the machine.

    :param report: gets the event and what was to be reached.
    """

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        # Called for every import and every opened file: first what costs nothing.
        if event in _CONNECTING:
            target = arguments[1] if len(arguments) > 1 else None
            if target is None or _is_local_address(target):
                return  # a socket that is connected was judged when it was
        elif event in _RESOLVING:
            target = arguments[0] if arguments else None
            if _is_local_name(target):
                return
        else:
            return
        shown = ascii(target)[:200]
        report(event, shown)
        raise OfflineError(f"--offline: {shown} is not on this machine")

    return hook


def _report(event: str, target: str) -> None:
    log.warning("--offline: %s to %s was refused", event, target)


def _is_local_address(address: object) -> bool:
    if isinstance(address, (str, bytes)):
        return True  # a Unix socket
    if isinstance(address, tuple) and address and isinstance(address[0], (str, bytes)):
        return _is_local_name(address[0])
    return False


def _is_local_name(name: object) -> bool:
    """``getnameinfo`` gives an address with its port, the others a name or a number as text."""
    if isinstance(name, tuple):
        return _is_local_address(name)
    if name is None:
        return True  # an address to listen on
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    if not isinstance(text, str):
        return False
    if text.lower() in _LOCAL_NAMES:
        return True
    try:
        ip = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback or ip.is_unspecified
