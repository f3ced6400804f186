"""The text of an HTML page, with every word on the line where the page has it."""

from __future__ import annotations

from html.parser import HTMLParser

_NOT_TEXT = frozenset(("script", "style", "template", "svg", "noscript"))
_INLINE = frozenset("a abbr b bdi bdo cite code data dfn em font i kbd label mark q s samp small "
                    "span strong sub sup time tt u var wbr".split())  # fmt: skip


def html_text(page: str) -> str:
    """What a reader sees of ``page``, on as many lines, without tags, scripts and styles."""
    reader = _Reader(page.count("\n") + 1)
    reader.feed(page)
    reader.close()
    return "\n".join(" ".join(words.split()) for words in reader.lines)


class _Reader(HTMLParser):
    def __init__(self, n_lines: int) -> None:
        super().__init__(convert_charrefs=True)
        self.lines = [""] * n_lines
        self._skipping: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping is None and tag in _NOT_TEXT:
            self._skipping = tag
        self._separate(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipping:
            self._skipping = None
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if self._skipping is None:
            first = self.getpos()[0] - 1
            # A page's own character references may stand for line breaks that it does not have.
            for i, part in enumerate(data.split("\n"), start=first):
                self.lines[min(i, len(self.lines) - 1)] += part

    def _separate(self, tag: str) -> None:
        """Words of neighbouring blocks must not grow together."""
        if tag not in _INLINE:
            self.lines[self.getpos()[0] - 1] += " "
