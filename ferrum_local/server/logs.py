"""Logging of the whole process: one handler, to stderr, as text for people or JSON for machines."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from collections.abc import Iterator

from ferrum_local.server.config import LogFormat

# What every LogRecord has; anything else on a record came in through ``extra``.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(log_format: LogFormat, level: str) -> None:
    """Send every logger's records to stderr. Replaces what was configured before.

    :param level: debug, info, warning or error, in either case.
    """
    stream = sys.stderr
    if isinstance(stream, io.TextIOWrapper):
        # A log line must never fail on a character, whatever the terminal's encoding is.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # Without a stderr (pythonw) there is nowhere to log to.
    handler = logging.StreamHandler(stream) if stream is not None else logging.NullHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Chatty at info about what the access line says already.
    quiet = logging.DEBUG if level.lower() == "debug" else logging.WARNING
    for name in ("werkzeug", "gunicorn.error", "faster_whisper"):
        logging.getLogger(name).setLevel(quiet)
    # A closed stderr is no reason to print a traceback, least of all to stderr.
    logging.raiseExceptions = False


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00 INFO message [request id]``; a record stays on one line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Text from outside (a model name, a path) must not be able to forge a line.
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        request_id = getattr(record, "request_id", None)
        line = super().formatMessage(record)
        if request_id is None or str(request_id) in record.message:
            return line
        return f"{line} [{request_id}]"


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, what came in ``extra``, a traceback."""

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
