"""The parts of a Markdown page that can be tested: code blocks, headings, links, inline code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}) *(.*)$")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")
_CODE_SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")


class Unreadable(ValueError):
    """The page has something that these tests would overlook."""


class Block(NamedTuple):
    """A fenced block. ``heading`` is the anchor of the nearest heading above it."""

    page: str
    line: int
    heading: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}-{self.heading}-{self.language}-line{self.line}"


class Page:
    """A parsed page.

    :ivar prose: its lines outside fenced blocks, joined.
    :raises Unreadable: an open fence, or a block that is code by indentation only.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.blocks: list[Block] = []
        self.anchors: list[str] = []
        prose: list[str] = []
        fence: tuple[str, int, str] | None = None  # its characters, line, info string
        inside: list[str] = []
        for number, line in enumerate(text.splitlines(), start=1):
            found = _FENCE.match(line)
            if fence is not None:
                if found and found[1].startswith(fence[0]) and not found[2]:
                    self._add_block(fence[1], fence[2], inside)
                    fence, inside = None, []
                else:
                    inside.append(line)
            elif found:
                fence = (found[1], number, found[2])
            else:
                if re.match(r"^(\t| {4,})\S", line) and not (prose and prose[-1].strip()):
                    raise Unreadable(f"{name}:{number}: use a fence for code, not indentation")
                heading = _HEADING.match(line)
                if heading:
                    self._add_anchor(heading[1])
                prose.append(line)
        if fence is not None:
            raise Unreadable(f"{name}:{fence[1]}: this block is never closed")
        self.prose = "\n".join(prose)

    @classmethod
    def read(cls, root: Path, name: str) -> Page:
        return cls(name, (root / name).read_text(encoding="utf-8"))

    def _add_block(self, line: int, info: str, lines: list[str]) -> None:
        heading = self.anchors[-1] if self.anchors else "top"
        language = info.strip() or "none"
        self.blocks.append(Block(self.name, line, heading, language, "\n".join(lines) + "\n"))

    def _add_anchor(self, heading: str) -> None:
        """As GitHub makes them: lower case, punctuation dropped, repeated ones numbered."""
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        n_before = sum(re.sub(r"-\d+$", "", anchor) == slug for anchor in self.anchors)
        self.anchors.append(f"{slug}-{n_before}" if n_before else slug)

    def code_spans(self) -> Iterator[str]:
        """The texts of `inline code`, without HTML comments."""
        for found in _CODE_SPAN.finditer(re.sub(r"<!--.*?-->", "", self.prose, flags=re.DOTALL)):
            yield found[2].replace("\\|", "|")

    def links(self) -> list[str]:
        """Targets of links, in order, each once."""
        return list(dict.fromkeys(_LINK.findall(_CODE_SPAN.sub("", self.prose))))

    def table_rows(self) -> Iterator[list[str]]:
        """The cells of every table row but the ruled ones."""
        for line in self.prose.splitlines():
            if line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line):
                yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
