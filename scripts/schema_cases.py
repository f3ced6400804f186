"""Twelve JSON schemas, of the kinds that people send, for checks of structured output."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.structured import CUSTOMER


def closed_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    """All properties required, nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


class Colour(str, enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Closed(BaseModel):
    """Nothing but the fields it names, as the OpenAI SDK's strict schemas."""

    model_config = ConfigDict(extra="forbid")


class Item(Closed):
    name: Annotated[str, Field(max_length=12)]
    quantity: Annotated[int, Field(ge=1, le=9)]
    colour: Colour


class Address(Closed):
    street: Annotated[str, Field(max_length=16)]
    zip_code: Annotated[str, Field(pattern=r"^\d{5}$")]


class Order(Closed):
    """Nested models and an enum: ``$defs`` with several ``$ref``."""

    order_id: Annotated[int, Field(ge=100, le=999)]
    items: Annotated[list[Item], Field(min_length=1, max_length=2)]
    ship_to: Address
    comment: Annotated[str, Field(max_length=10)] | None


class Circle(Closed):
    kind: Literal["circle"]
    radius: Annotated[int, Field(ge=1, le=50)]


class Square(Closed):
    kind: Literal["square"]
    side: Annotated[int, Field(ge=1, le=50)]


class Drawing(Closed):
    """A union that a field tells apart."""

    title: Annotated[str, Field(max_length=12)]
    shape: Annotated[Circle | Square, Field(discriminator="kind")]


DIGIT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9}
POINT = closed_object({"x": DIGIT, "y": DIGIT})

SCHEMAS: dict[str, dict[str, Any]] = {
    "customer": CUSTOMER,
    "pydantic order": Order.model_json_schema(),
    "pydantic union": Drawing.model_json_schema(),
    "enum or null": closed_object(
        {"value": {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]}}
    ),
    "two references": closed_object(
        {"first": {"$ref": "#/$defs/point"}, "second": {"$ref": "#/$defs/point"}},
        **{"$defs": {"point": POINT}},
    ),
    "recursive": closed_object(
        {"tree": {"$ref": "#/$defs/tree"}},
        **{"$defs": {"tree": {"anyOf": [DIGIT, {"type": "array", "items": {"$ref": "#/$defs/tree"},
                                                "maxItems": 2}]}}},
    ),
    "reference into anyOf": closed_object(
        {
            "first": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "boolean"}]},
            "second": {"$ref": "#/properties/first/anyOf/0"},
        }
    ),
    "patterns": closed_object(
        {
            "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
            "plate": {"type": "string", "pattern": "^[a-z]+[0-9]?$", "maxLength": 8},
        }
    ),
    "formats": closed_object(
        {
            "day": {"type": "string", "format": "date"},
            "id": {"type": "string", "format": "uuid"},
            "address": {"type": "string", "format": "ipv4"},
        }
    ),
    "numbers": closed_object(
        {
            "percent": {"type": "integer", "exclusiveMinimum": 0, "maximum": 100},
            "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 50},
            "ratio": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.05},
        }
    ),
    "lists": closed_object(
        {
            "tags": {"type": "array", "items": {"enum": ["new", "used", "sold"]},
                     "minItems": 1, "maxItems": 3},
            "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": "end"}],
                     "items": False, "minItems": 2},
        }
    ),
    "optional and const": {
        "type": "object",
        "properties": {
            "version": {"const": 1},
            "note": {"type": ["string", "null"], "maxLength": 10},
            "flag": {"type": "boolean"},
        },
        "required": ["version"],
        "additionalProperties": False,
    },
}  # fmt: skip
