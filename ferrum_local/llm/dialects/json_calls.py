"""Calls written as JSON objects with a name and arguments: what most families write."""

from __future__ import annotations

import json

from ferrum_local.llm.dialects.json_scanner import JsonScanner, copy_value, read_value
from ferrum_local.llm.dialects.reader import Reader, Reading
from ferrum_local.llm.dialects.sink import ALPHANUMERIC, Sink

NAME_CHARS = ALPHANUMERIC + "_-."  # what OpenAI allows, and the dots that some tools have

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters")
_KEYS = (*_NAME_KEYS, *_ARGUMENT_KEYS, "type", "id", "tool_call_id")


def read_calls(reader: Reader, sink: Sink) -> Reading[bool]:
    """One call, or an array of calls; False: what comes next is none."""
    if not (yield from reader.match("[")):
        return (yield from read_call(reader, sink))
    yield from reader.space()
    if not (yield from read_call(reader, sink)):
        return False
    while True:
        end = reader.pos
        yield from reader.space()
        if (yield from reader.match("]")):
            return True
        comma = yield from reader.match(",")
        yield from reader.space()
        if not comma or not (yield from read_call(reader, sink)):
            reader.pos = end
            return True


def read_call(reader: Reader, sink: Sink) -> Reading[bool]:
    """One object. Arguments behind the name are given on as they arrive.

    True as soon as a call has begun, even if the rest of it breaks. The cursor is then where it
    broke. False: nothing was given on.
    """
    if not (yield from reader.match("{")):
        return False
    name: str | None = None
    arguments = "null"
    begun = False
    yield from reader.space()
    while True:
        key = yield from _string(reader)
        yield from reader.space()
        if key is None or not (yield from reader.match(":")):
            return begun
        yield from reader.space()
        if begun:
            if (yield from read_value(reader)) is None:
                return True
        elif key not in _KEYS:
            return False
        elif key in _NAME_KEYS:
            name = yield from _string(reader)
            if name not in sink.tools:
                return False
        elif name is not None and key in _ARGUMENT_KEYS and (yield from reader.peek()) == "{":
            if not (yield from begin_and_copy(reader, sink, name)):
                return False
            begun = True
            if not sink.complete:
                return True
        else:
            value = yield from read_value(reader)
            if value is None:
                return False
            if key in _ARGUMENT_KEYS:
                arguments = value
        after = reader.pos
        yield from reader.space()
        if (yield from reader.match("}")):
            break
        if not (yield from reader.match(",")):
            reader.pos = after
            return begun
        yield from reader.space()
    if begun:
        return True
    text = object_text(arguments)
    if name is None or text is None:
        return False
    sink.call(name, text)
    return True


def begin_and_copy(reader: Reader, sink: Sink, name: str) -> Reading[bool]:
    """Begin a call with the object that comes next as its arguments.

    False, and nothing begun, where it shows at once that this is no JSON object.
    """
    start = reader.pos
    yield from reader.match("{")
    yield from reader.space()
    if (yield from reader.peek()) not in ("}", '"'):
        return False
    reader.pos = start
    sink.begin_call(name)
    sink.complete = yield from copy_value(reader, sink.arguments, commit=True)
    return True


def read_name(reader: Reader, sink: Sink) -> Reading[str | None]:
    """The name of a known tool, in plain text; None: something else comes next."""
    name = yield from reader.while_in(NAME_CHARS)
    return name if name in sink.tools else None


def object_text(value: str) -> str | None:
    """The JSON text of arguments as that of an object: null is none, a string may hold one."""
    if value.startswith('"'):
        value = str(json.loads(value)).strip() or "null"
        scanner = JsonScanner()
        n_read, _ = scanner.feed(value)
        if value != "null" and (n_read < len(value) or not scanner.done):
            return None
    if value == "null":
        return "{}"
    return value if value.startswith("{") else None


def _string(reader: Reader) -> Reading[str | None]:
    if (yield from reader.peek()) != '"':
        return None
    text = yield from read_value(reader)
    return None if text is None else str(json.loads(text))
