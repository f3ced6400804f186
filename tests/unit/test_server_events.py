from __future__ import annotations

import json
import os

import pytest

from ferrum_local.errors import ConfigError
from ferrum_local.server.events import EventWriter, Exited, Fatal, Loading, Ready, as_line
from ferrum_local.server.lifelines import PARENT_EXITED, _Waiting

READY = Ready(url="http://127.0.0.1:1", host="127.0.0.1", port=1, pid=2, version="0", models=("m",))

pytestmark = pytest.mark.skipif(os.name != "posix", reason="descriptors as on POSIX")


def test_the_ready_line_is_as_it_always_was() -> None:
    assert as_line(READY) == (
        b'{"event":"ready","url":"http://127.0.0.1:1","host":"127.0.0.1","port":1,"pid":2,'
        b'"version":"0","models":["m"]}\n'
    )


def test_a_line_is_json_whatever_the_message_holds() -> None:
    for text in ("模型🦀\n\x00", "not UTF-8: \udcff", '"quoted"'):
        line = as_line(Fatal(code="x", message=text))
        assert line.count(b"\n") == 1
        assert json.loads(line)["message"] == text


def test_a_reader_that_left_is_forgotten() -> None:
    reader, writer = os.pipe()
    events = EventWriter(to_stdout=False, fd=writer)
    events.write(Loading(model="m", percent=0))
    assert json.loads(os.read(reader, 4096)) == {"event": "loading", "model": "m", "percent": 0}
    os.close(reader)
    events.write(Exited(code=0))
    os.close(writer)
    events.write(Exited(code=0))  # not even looked at: the number may be another file's by now


def test_a_descriptor_that_cannot_be_written_to_is_refused() -> None:
    reader, writer = os.pipe()
    with pytest.raises(ConfigError, match="for reading only"):
        EventWriter(to_stdout=False, fd=reader)
    os.close(reader)
    os.close(writer)
    with pytest.raises(ConfigError, match="is not open"):
        EventWriter(to_stdout=False, fd=reader)


def test_a_lifeline_that_a_thread_waits_for_becomes_readable() -> None:
    line = _Waiting(PARENT_EXITED, lambda: None)
    assert os.read(line.fileno(), 1) == b""
    assert line.is_cut()
    line.close()
