"""Logging of the whole process: one handler, to stderr, as text for people or JSON for machines."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from ferrum_local.server.config import LogFormat

# What every LogRecord has; anything else on a record came in through ``extra``.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(log_format: LogFormat, level: str, *, with_content: bool = False) -> None:
    """Send every logger's records to stderr. Replaces what was configured before.

    Logs hold no text of a request unless ``with_content``: libraries write what they work on at
    debug level, and exceptions tell of it in their messages, so both stay out.

    :param level: debug, info, warning or error, in either case.
    """
    stream = sys.stderr
    if isinstance(stream, io.TextIOWrapper):
        # A log line must never fail on a character, whatever the terminal's encoding is.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # Without a stderr (pythonw) there is nowhere to log to.
    handler = logging.StreamHandler(stream) if stream is not None else logging.NullHandler()
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    handler.setFormatter(formatter(with_content=with_content))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    ours = logging.getLevelName(level.upper())
    root.setLevel(ours if with_content else max(ours, logging.INFO))
    logging.getLogger("ferrum_local").setLevel(ours)
    # They are chatty at info about what the access line says already.
    quiet = logging.DEBUG if root.level == logging.DEBUG else logging.WARNING
    for name in ("werkzeug", "gunicorn.error", "faster_whisper"):
        logging.getLogger(name).setLevel(quiet)
    # A closed stderr is no reason to print a traceback, least of all to stderr.
    logging.raiseExceptions = False


class _Formatter(logging.Formatter):
    """Tracebacks without the exceptions' messages, which may hold what a client wrote.

    :param with_content: they are wanted.
    """

    def __init__(
        self, fmt: str | None = None, datefmt: str | None = None, *, with_content: bool = False
    ) -> None:
        super().__init__(fmt, datefmt)
        self._with_content = with_content

    def formatException(self, ei: Any) -> str:
        if self._with_content:
            return super().formatException(ei)
        return "\n".join(_without_messages(ei[1]))


def _without_messages(error: BaseException | None) -> Iterator[str]:
    """As Python prints it; of exceptions that are not the system's the names alone."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    for link in reversed(chain):
        yield "Traceback (most recent call last):"
        yield "".join(traceback.format_tb(link.__traceback__)).rstrip("\n")
        if isinstance(link, OSError):
            yield f"{type(link).__name__}: {link}"
        else:
            yield f"{type(link).__name__} (--log-content shows its message)"


class TextFormatter(_Formatter):
    """``2026-01-31 12:00:00 INFO message [request id]``; a record stays on one line."""

    def __init__(self, *, with_content: bool = False) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S", with_content=with_content
        )

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Text from outside (a model name, a path) must not be able to forge a line.
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        request_id = getattr(record, "request_id", None)
        line = super().formatMessage(record)
        if request_id is None or str(request_id) in record.message:
            return line
        return f"{line} [{request_id}]"


class JsonFormatter(_Formatter):
    """One object a line: time, level, logger, message, what came in ``extra``, a traceback."""

    def __init__(self, *, with_content: bool = False) -> None:
        super().__init__(with_content=with_content)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update(_extra_fields(record))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """UTC, milliseconds, RFC 3339."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


def _extra_fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for name, value in vars(record).items():
        if name not in _STANDARD_FIELDS:
            yield name, value
