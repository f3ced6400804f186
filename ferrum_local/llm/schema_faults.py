"""Where in a JSON schema the fault is that the grammar library only describes.

The library compiles a schema as a whole and says what it met, not where. The subschema at
fault is found by compiling the parts alone: it is the innermost one that gets the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

Schema: TypeAlias = dict[str, Any]
Step: TypeAlias = "str | int"

_MAX_ATTEMPTS = 500
_DEFINITIONS = ("$defs", "definitions")
_MAPS = (*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames",
           "if", "then", "else")  # fmt: skip
_UNSUPPORTED_KEYS = re.compile(r'^Unimplemented keys: \["([^"]+)"')
_IN_QUOTES = re.compile(r"'([A-Za-z]+)'")
# What a message begins with, and the keyword that it is about.
_BEGINNINGS = (
    ("Unknown format", "format"),
    ("Invalid type", "type"),
    ("regex parse error", "pattern"),
    ("oneOf constraints", "oneOf"),
    ("Pointer", "$ref"),
    ("Resource", "$ref"),
    ("circular references", "$ref"),
)
_OF_THE_WHOLE = ("recursion limit", "schema too large")


class SchemaFault(NamedTuple):
    """``path`` is that of the keyword, if the message tells it, else of the subschema."""

    path: str
    problem: str


def find_fault(
    root: Schema, message: str, complaint: Callable[[Schema], str | None], base: str
) -> SchemaFault:
    """:param message: the library's words about the whole schema.
    :param complaint: the library's words about a schema; None: it has none.
    :param base: path of the schema in the request.
    """
    if message.startswith(_OF_THE_WHOLE):
        return SchemaFault(base, message)
    steps, schema = _innermost(root, message, complaint)
    unsupported = _UNSUPPORTED_KEYS.match(message)
    keyword = unsupported.group(1) if unsupported else _keyword(message, schema)
    if keyword is not None:
        steps.append(keyword)
    path = base + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)
    return SchemaFault(path, "this keyword is not supported" if unsupported else message)


def _innermost(
    root: Schema, message: str, complaint: Callable[[Schema], str | None]
) -> tuple[list[Step], Schema]:
    shared = {name: root[name] for name in _DEFINITIONS if name in root}
    steps: list[Step] = []
    schema = root
    followed: set[str] = set()
    n_attempts = 0
    while True:
        target = _target(root, schema.get("$ref"), followed)
        if target is not None and complaint({**shared, **target[1]}) == message:
            steps, schema = target
            continue
        for child_steps, child in _children(schema):
            n_attempts += 1
            if n_attempts > _MAX_ATTEMPTS:
                return steps, schema
            if complaint({**shared, **child}) == message:
                steps, schema = [*steps, *child_steps], child
                break
        else:
            return steps, schema


def _children(schema: Schema) -> Iterator[tuple[tuple[Step, ...], Schema]]:
    for name in _MAPS:
        if isinstance(children := schema.get(name), dict):
            for key, child in children.items():
                if isinstance(child, dict):
                    yield (name, key), child
    for name in _LISTS:
        if isinstance(children := schema.get(name), list):
            for i, child in enumerate(children):
                if isinstance(child, dict):
                    yield (name, i), child
    for name in _SINGLE:
        if isinstance(child := schema.get(name), dict):
            yield (name,), child


def _target(root: Schema, ref: Any, followed: set[str]) -> tuple[list[Step], Schema] | None:
    """What a reference into the definitions means, the first time it is followed."""
    if not isinstance(ref, str) or ref in followed:
        return None
    followed.add(ref)
    for name in _DEFINITIONS:
        key = ref.removeprefix(f"#/{name}/")
        definitions = root.get(name)
        if key != ref and isinstance(definitions, dict):
            if isinstance(target := definitions.get(key), dict):
                return [name, key], target
    return None


def _keyword(message: str, schema: Schema) -> str | None:
    candidates = [key for beginning, key in _BEGINNINGS if message.startswith(beginning)]
    candidates += _IN_QUOTES.findall(message)
    candidates.append(message.split(" ", 1)[0])
    return next((key for key in candidates if key in schema), None)
