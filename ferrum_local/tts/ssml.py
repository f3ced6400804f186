"""The part of SSML that is understood: speak, p, s, break. Everything else is refused."""

from __future__ import annotations

import re
import xml.parsers.expat
from typing import TypeAlias

from ferrum_local.errors import InvalidRequest, Unsupported

Piece: TypeAlias = str | float  # text, or a pause in seconds

MAX_BREAK_S = 20.0
MAX_PAUSES_S = 600.0  # all together
_STRENGTH_S = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.7,
               "x-strong": 1.2}  # fmt: skip
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_KNOWN = ("speak", "p", "s", "break")


def is_ssml(text: str) -> bool:
    return re.match(r"\s*(?:<\?xml[^>]*>\s*)?<speak[\s/>]", text) is not None


def parse_ssml(text: str) -> list[Piece]:
    """Texts and pauses in order.

    :raises Unsupported: an element that is not one of those above.
    :raises InvalidRequest: it is no well-formed XML.
    """
    pieces: list[Piece] = []
    open_elements: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        if name not in _KNOWN or (name == "speak") != (not open_elements):
            raise Unsupported(
                f"input: the SSML element <{name[:40]}> is not supported here; there are "
                "<speak>, <p>, <s> and <break>",
                param="input",
            )
        open_elements.append(name)
        if name == "break":
            pieces.append(_break_s(attributes))
        elif name in ("p", "s"):
            pieces.append("\n")

    def end(name: str) -> None:
        open_elements.pop()
        if name in ("p", "s"):
            pieces.append("\n")

    def refuse_doctype(*_: object) -> None:
        # Entities that expand without end need one.
        raise Unsupported("input: SSML with a DOCTYPE is not supported", param="input")

    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = pieces.append
    parser.StartDoctypeDeclHandler = refuse_doctype
    try:
        parser.Parse(text.strip(), True)
    except xml.parsers.expat.ExpatError as error:
        raise InvalidRequest(f"input: is not valid SSML: {error}", param="input") from error
    pauses_s = sum(piece for piece in pieces if isinstance(piece, float))
    if pauses_s > MAX_PAUSES_S:
        raise InvalidRequest(
            f"input: expected breaks of at most {MAX_PAUSES_S:g}s all together, got {pauses_s:g}s",
            param="input",
        )
    return _joined(pieces)


def _break_s(attributes: dict[str, str]) -> float:
    if "time" in attributes:
        time = _TIME.fullmatch(attributes["time"].strip())
        seconds = float(time[1]) * (0.001 if time[2] == "ms" else 1.0) if time else -1.0
        if not 0 <= seconds <= MAX_BREAK_S:
            raise InvalidRequest(
                f"input: break time: expected something like 500ms or 2s, up to "
                f"{MAX_BREAK_S:g}s, got {attributes['time'][:40]!r}",
                param="input",
            )
        return seconds
    strength = attributes.get("strength", "medium")
    if strength not in _STRENGTH_S:
        known = ", ".join(_STRENGTH_S)
        raise InvalidRequest(
            f"input: break strength: expected one of {known}, got {strength[:40]!r}", param="input"
        )
    return _STRENGTH_S[strength]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts as one: expat hands them over in odd pieces."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined
