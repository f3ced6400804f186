"""Decoded JSON to typed requests, with errors that name the field and what it should be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec
import msgspec.inspect as mi

from ferrum_local.http.errors import ApiError
from ferrum_local.http.openai.schemas.common import INT64_MAX

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

MAX_SHOWN_CHARS = 60
NEAR_ENOUGH = 0.7  # difflib ratio from which a known name is offered for an unknown one

# msgspec says where (`- at `$.messages[0].role``) and of what sort a fault is; what was
# expected is told from the type itself, what came from the value.
_PATH = re.compile(r" - at `\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_NAMED_FIELD = re.compile(r"^Object (contains unknown|missing required) field `(.*)`$", re.DOTALL)

_PLAIN_NAME = re.compile(r"[\w.-]+")


def parse_request(body: object, request_type: type[RequestT], *, strict: bool = True) -> RequestT:
    """``body`` (what the JSON decoder gave) as ``request_type``.

    :param strict: False reads numbers and booleans from text, as forms have them.

    :raises ApiError: 400 with the path of the first field at fault.
    """
    if not isinstance(body, dict):
        raise ApiError(f"The request body: expected an object, got {json_type(body)}")
    try:
        return msgspec.convert(body, request_type, strict=strict)
    except msgspec.ValidationError as exc:
        raise _as_api_error(str(exc), body, request_type) from exc


def invalid(path: str, problem: str, *, code: str | None = None) -> ApiError:
    """A 400 for the field at ``path``."""
    return ApiError(f"{path}: {problem}", param=path, code=code)


def unsupported(path: str, problem: str) -> ApiError:
    """A 400 for a field that is known, but not with this value on this server."""
    return invalid(path, problem, code="unsupported_parameter")


def json_type(value: object) -> str:
    """JSON's word for what ``value`` is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "list" if isinstance(value, (list, tuple)) else "object"


def shown(value: object) -> str:
    """``value`` for an error message: short, on one line."""
    if isinstance(value, (dict, list)):
        return f"an empty {json_type(value)}" if not value else json_type(value)
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _as_api_error(text: str, body: object, request_type: type[msgspec.Struct]) -> ApiError:
    found = _PATH.search(text)
    steps = _steps(found.group(1)) if found else []
    problem = text[: found.start()] if found else text
    type_, value = _at(_type_info(request_type), body, steps)
    path = _spelled(steps)

    field = _NAMED_FIELD.match(problem)
    if field:
        name = field.group(2)
        if not _PLAIN_NAME.fullmatch(name):
            name = shown(name)
        path = f"{path}.{name}" if path else name
        if field.group(1) == "missing required":
            return invalid(path, "required, but missing", code="missing_required_parameter")
        return invalid(
            path[:MAX_SHOWN_CHARS],
            f"unknown field{_suggestion(name, type_)}",
            code="unknown_parameter",
        )
    if ", got `" in problem:
        # A value of the wrong type may be a secret or a megabyte: only its type is told.
        return invalid(path, f"expected {_described(type_)}, got {json_type(value)}")
    return invalid(path, f"expected {_described(_without_null(type_))}, got {shown(value)}")


def _steps(path: str) -> list[str | int | None]:
    """``.messages[2].content`` as names and indexes; None is some key of a mapping."""
    return [name or (int(index) if index else None) for name, index in _STEP.findall(path)]


def _spelled(steps: Iterable[str | int | None]) -> str:
    text = "".join(f".{s}" if isinstance(s, str) else "" if s is None else f"[{s}]" for s in steps)
    return text.removeprefix(".")


@lru_cache(maxsize=16)
def _type_info(request_type: type[msgspec.Struct]) -> mi.Type:
    return mi.type_info(request_type)


def _at(type_: mi.Type, value: object, steps: list[str | int | None]) -> tuple[mi.Type, object]:
    """The declared type and the value that came, where ``steps`` lead to."""
    for step in steps:
        inner = _inside(type_, step)
        if inner is None:
            break
        type_ = inner
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step]
        elif isinstance(value, dict):
            value = _first_misfit(value, type_)
    return type_, value


def _inside(type_: mi.Type, step: str | int | None) -> mi.Type | None:
    for option in type_.types if isinstance(type_, mi.UnionType) else (type_,):
        if isinstance(step, str) and isinstance(option, mi.StructType):
            return next((f.type for f in option.fields if f.encode_name == step), None)
        if isinstance(step, int) and isinstance(option, mi.ListType):
            return option.item_type
        if step is None and isinstance(option, mi.DictType):
            return option.value_type
    return None


def _first_misfit(values: dict[str, object], type_: mi.Type) -> object:
    """msgspec does not tell which key of a mapping has the bad value: find it."""
    for value in values.values():
        if isinstance(type_, (mi.FloatType, mi.IntType)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return value
            low, high = _bounds(type_)
            if (low is not None and value < low) or (high is not None and value > high):
                return value
        elif isinstance(type_, mi.StrType) and not isinstance(value, str):
            return value
    return None


def _bounds(type_: mi.FloatType | mi.IntType) -> tuple[float | None, float | None]:
    return (
        type_.ge if type_.ge is not None else type_.gt,
        type_.le if type_.le is not None else type_.lt,
    )


def _without_null(type_: mi.Type) -> mi.Type:
    if not isinstance(type_, mi.UnionType):
        return type_
    return mi.UnionType(tuple(t for t in type_.types if not isinstance(t, mi.NoneType)))


def _described(type_: mi.Type) -> str:
    if isinstance(type_, mi.UnionType):
        # "string, null or list of parts": the plain forms first
        options = sorted(type_.types, key=lambda t: isinstance(t, mi.ListType))
        *most, last = (_described(t) for t in options)
        return f"{', '.join(most)} or {last}" if most else last
    if isinstance(type_, (mi.FloatType, mi.IntType)):
        return ("integer" if isinstance(type_, mi.IntType) else "number") + _range(type_)
    if isinstance(type_, mi.LiteralType):
        return "one of " + ", ".join(str(v) for v in type_.values)
    if isinstance(type_, mi.ListType):
        kind = "non-empty list of " if type_.min_length else "list of "
        return kind + _plural(_noun(type_.item_type))
    return _noun(type_)


def _range(type_: mi.FloatType | mi.IntType) -> str:
    low, high = _bounds(type_)
    if low is None and high is None:
        return ""
    above = "above" if type_.gt is not None else "from"
    if high is None:
        return f" of at least {low}" if above == "from" else f" above {low}"
    if low is None:
        return f" of at most {high}"
    if high == INT64_MAX:
        return " of 64 bits"
    return f" {above} {low} to {high}"


def _noun(type_: mi.Type) -> str:
    if isinstance(type_, mi.StructType):
        return str(getattr(type_.cls, "noun", "object"))
    if isinstance(type_, mi.UnionType):
        return " or ".join(_plural(_noun(t)) for t in type_.types)
    names: tuple[tuple[type[mi.Type], str], ...] = (
        (mi.NoneType, "null"),
        (mi.BoolType, "true or false"),
        (mi.IntType, "integer"),
        (mi.FloatType, "number"),
        (mi.StrType, "string"),
        (mi.ListType, "list"),
        (mi.DictType, "object"),
    )
    return next((name for kind, name in names if isinstance(type_, kind)), "value")


def _plural(noun: str) -> str:
    return noun if noun.endswith("s") else noun + "s"


def _suggestion(name: str, type_: mi.Type) -> str:
    for option in type_.types if isinstance(type_, mi.UnionType) else (type_,):
        if isinstance(option, mi.StructType):
            known = [f.encode_name for f in option.fields]
            near = difflib.get_close_matches(name[:MAX_SHOWN_CHARS], known, n=1, cutoff=NEAR_ENOUGH)
            if near:
                return f"; did you mean {near[0]}?"
    return ""
