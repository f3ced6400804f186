from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.server.logs import JsonFormatter, TextFormatter, configure_logging


@contextmanager
def ascii_stderr() -> Iterator[io.BytesIO]:
    """An ASCII stderr, as a C locale or a Windows pipe has; logging is put back afterwards.

    Not a fixture: pytest puts its own stderr in place between a fixture and its test.
    """
    root, own = logging.getLogger(), logging.getLogger("ferrum_local")
    handlers, raises = root.handlers[:], logging.raiseExceptions
    levels = {logger: logger.level for logger in (root, own)}
    raw = io.BytesIO()
    with redirect_stderr(io.TextIOWrapper(raw, encoding="ascii", line_buffering=True)):
        try:
            yield raw
        finally:
            root.handlers[:] = handlers
            for logger, level in levels.items():
                logger.setLevel(level)
            logging.raiseExceptions = raises


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": message, "levelname": "INFO", "name": "ferrum_local"})
    vars(made).update(extra)
    return made


def test_text_is_utf_8_on_any_terminal_and_never_fails() -> None:
    with ascii_stderr() as stderr:
        configure_logging("text", "info")
        logging.getLogger("ferrum_local").info("Modèle 模型 \udcff geladen")
        assert stderr.getvalue().decode("utf-8").endswith("INFO Modèle 模型 \\udcff geladen\n")


def test_level_decides_in_either_case() -> None:
    with ascii_stderr() as stderr:
        configure_logging("text", "WARNING")
        logging.getLogger("ferrum_local").info("not this")
        logging.getLogger("ferrum_local").warning("but this")
        assert b"not this" not in stderr.getvalue()
        assert b"but this" in stderr.getvalue()


def test_configuring_twice_logs_once() -> None:
    with ascii_stderr() as stderr:
        configure_logging("text", "info")
        configure_logging("json", "info")
        logging.getLogger("ferrum_local").info("once")
        assert stderr.getvalue().count(b"once") == 1


def test_without_stderr_logging_goes_nowhere() -> None:
    with ascii_stderr() as stderr, redirect_stderr(None):
        configure_logging("text", "info")
        logging.getLogger("ferrum_local").info("unheard")
        assert stderr.getvalue() == b""


def test_request_id_is_shown_once() -> None:
    assert TextFormatter().format(record("done", request_id="req-1")).endswith("done [req-1]")
    assert TextFormatter().format(record("req-1 done", request_id="req-1")).endswith("req-1 done")


def test_json_carries_extra_fields_and_the_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        made = record("failed", request_id="req-1", tokens=7, exc_info=sys.exc_info())
    fields = json.loads(JsonFormatter(with_content=True).format(made))
    assert fields["request_id"] == "req-1"
    assert fields["tokens"] == 7
    assert fields["level"] == "info"
    assert "ValueError: boom" in fields["exception"]
    assert fields["time"].endswith("Z")


def test_a_traceback_names_the_exception_and_keeps_what_a_client_wrote_to_itself() -> None:
    secret = "my diary"
    try:
        try:
            raise ValueError(secret)
        except ValueError as error:
            raise KeyError(secret) from error
    except KeyError:
        made = record("failed", exc_info=sys.exc_info())
    for formatter in (TextFormatter(), JsonFormatter()):
        made.exc_text = None  # what another formatter has left there
        text = formatter.format(made)
        assert secret not in text.replace('ValueError("my diary")', "")
        assert text.index("ValueError (") < text.index("KeyError (")
        assert "test_server_logs.py" in text
    made.exc_text = None
    assert secret in TextFormatter(with_content=True).format(made)


def test_errors_of_the_system_are_told_in_full() -> None:
    try:
        open("/nowhere/at all")
    except OSError:
        made = record("failed", exc_info=sys.exc_info())
    assert "No such file or directory: '/nowhere/at all'" in TextFormatter().format(made)


def test_at_level_debug_libraries_do_not_tell_what_they_work_on() -> None:
    with ascii_stderr() as stderr:
        configure_logging("text", "debug")
        logging.getLogger("ferrum_local.llm").debug("ours")
        logging.getLogger("piper.voice").debug("text=my diary")
        assert b"ours" in stderr.getvalue() and b"diary" not in stderr.getvalue()
        configure_logging("text", "debug", with_content=True)
        logging.getLogger("piper.voice").debug("text=my diary")
        assert b"diary" in stderr.getvalue()


@given(st.text())
def test_no_text_from_outside_starts_a_new_line(text: str) -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(text))
        assert "\n" not in line and "\r" not in line


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_json_gives_back_the_message_even_with_lone_surrogates(text: str) -> None:
    line = JsonFormatter().format(record(text)).encode("utf-8", "backslashreplace")
    assert json.loads(line)["message"] == text
