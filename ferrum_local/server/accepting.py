"""What to do when a connection could not be accepted; both servers do the same."""

from __future__ import annotations

import errno
import logging
import time

log = logging.getLogger("ferrum_local.server")

_GONE = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ECONNABORTED, errno.EPROTO)
_NOT_LISTENING = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_PAUSE_S = 0.1


def after_failed_accept(error: OSError) -> None:
    """Return when it can be tried again. The server must outlive whatever the system lacks.

    :raises OSError: ``error``, if the socket listens no more.
    """
    if error.errno in _NOT_LISTENING:
        raise error
    if error.errno not in _GONE:
        log.warning("New connections wait: %s", error.strerror or error)
        time.sleep(_PAUSE_S)  # the socket stays readable; do not spin on it
