"""Numbers in JSON schemas that grammars cannot keep exactly."""

from __future__ import annotations

from typing import Any

from ferrum_local.errors import InvalidRequest

_MAX_EXACT = 2**53
BEYOND = "integers beyond -2^53 and 2^53 are not exact here and cannot be demanded"
_LOWER_BOUNDS = frozenset({"minimum", "exclusiveMinimum"})
_UPPER_BOUNDS = frozenset({"maximum", "exclusiveMaximum"})
# Whose keys are names, whatever they look like.
_NAMED_SCHEMAS = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)


def with_safe_numbers(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """The schema with bounds of at most ±2^53, of which every integer is a double.

    llguidance computes with doubles and 64-bit integers: beyond, an answer would break its
    schema, and the least of those integers ends the process. A range that reaches farther, as
    that of all 64-bit integers, is narrowed, so that what is answered fits it.

    :raises InvalidRequest: nothing within ±2^53 would do.
    """
    try:
        return {key: _safe(key, value, f"{param}.{key}") for key, value in schema.items()}
    except RecursionError:
        raise _invalid(param, "nests too deep") from None


def _safe(key: str, value: Any, path: str) -> Any:
    """The value of a keyword."""
    if key in _LOWER_BOUNDS | _UPPER_BOUNDS and isinstance(value, (int, float)):
        if value > _MAX_EXACT if key in _LOWER_BOUNDS else value < -_MAX_EXACT:
            raise _invalid(path, BEYOND)
        return min(max(value, -_MAX_EXACT), _MAX_EXACT)
    if key in ("const", "enum"):
        _check_exact(value, path)
        return value
    if isinstance(value, dict):
        if key in _NAMED_SCHEMAS:
            return {name: _safe("", part, f"{path}.{name}") for name, part in value.items()}
        return {k: _safe(k, v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe("", part, f"{path}[{i}]") for i, part in enumerate(value)]
    return value


def _check_exact(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _check_exact(part, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            _check_exact(part, f"{path}[{i}]")
    elif isinstance(value, int) and abs(value) > _MAX_EXACT:
        raise _invalid(path, BEYOND)
    elif isinstance(value, float) and value.is_integer() and abs(value) > _MAX_EXACT:
        raise _invalid(path, BEYOND)


def _invalid(param: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {problem}", param=param)
