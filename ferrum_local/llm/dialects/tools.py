"""A request's tools as the dialects need them: names, and schemas of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Where the schema of an object says no more than its properties, others are not offered: a small
# model would go on inventing them. What is then written still fits the schema as it was given.
_SAYS_MORE = frozenset(
    (
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
        "minProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "$ref",
    )
)


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; ``schema`` describes the object of its arguments."""

    name: str
    schema: Mapping[str, Any]

    @property
    def is_plain(self) -> bool:
        """The schema lists properties and says nothing of how they depend on each other."""
        return _SAYS_MORE.isdisjoint(self.schema.keys() - {"additionalProperties"})

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of the arguments by name, as far as they have some of their own."""
        return properties_of(self.schema)

    def definition(self, schema: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """The name and the schema that ``schema`` refers to, if they are defined here."""
        _, _, path = str(schema.get("$ref", "")).partition("#/")
        place, _, name = path.partition("/")
        if place not in ("$defs", "definitions") or not isinstance(self.schema.get(place), Mapping):
            return None
        shared = self.schema[place].get(name)
        return (name, shared) if isinstance(shared, Mapping) else None

    def part(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A schema from inside of this one, with the definitions that it may refer to."""
        shared = {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}
        return {**shared, **schema}


def properties_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: value if isinstance(value, Mapping) else {} for name, value in properties.items()}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Nothing but strings fits ``schema``."""
    values = listed_values(schema)
    if values is not None:
        return all(isinstance(value, str) for value in values)
    return schema.get("type") == "string"


def listed_values(schema: Mapping[str, Any]) -> Sequence[Any] | None:
    """The only values that fit ``schema``, where it lists them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def is_required(schema: Mapping[str, Any], name: str) -> bool:
    required = schema.get("required")
    return isinstance(required, Sequence) and name in required


def count(schema: Mapping[str, Any], key: str) -> int | None:
    """A limit such as ``maxLength``."""
    value = schema.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def tools_of(
    tools: Sequence[Mapping[str, Any]], *, choice: str, name: str | None = None
) -> tuple[Tool, ...]:
    """The tools that may be called: none, one that is demanded by name, or all."""
    if choice == "none":
        return ()
    found = []
    for tool in tools:
        function = tool.get("function", tool)
        if name is None or function["name"] == name:
            found.append(Tool(function["name"], _argument_schema(function.get("parameters"))))
    return tuple(found)


def _argument_schema(parameters: object) -> dict[str, Any]:
    if not isinstance(parameters, Mapping):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return _closed({"type": "object", **parameters})


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` without properties that it does not name, in objects inside of it too."""
    closed = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        closed["properties"] = {
            key: _closed(value) if isinstance(value, Mapping) else value
            for key, value in properties.items()
        }
        if _SAYS_MORE.isdisjoint(schema):
            closed["additionalProperties"] = False
    if isinstance(items := schema.get("items"), Mapping):
        closed["items"] = _closed(items)
    return closed
