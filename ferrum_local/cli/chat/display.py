"""How an answer looks: Markdown by rich on a terminal, the plain text elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from ferrum_local.cli.chat.answers import Piece

# A model's text must not steer the terminal: control characters but line break and tab go.
_CONTROL_CHARACTERS = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
_REDRAWS_PER_S = 12


class AnswerDisplay(Protocol):
    """Shows one answer as it comes; a context manager."""

    def __enter__(self) -> AnswerDisplay: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def add(self, piece: Piece) -> None: ...


def display_for(stdout: TextIO, *, markdown: bool) -> AnswerDisplay:
    """:param markdown: render it, if ``stdout`` is a terminal."""
    if not stdout.isatty():
        return PlainDisplay(stdout, is_terminal=False)
    if not markdown:
        return PlainDisplay(stdout, is_terminal=True)
    from rich.console import Console

    return MarkdownDisplay(Console(file=stdout))


class PlainDisplay:
    """The text as it comes, and a line break at its end."""

    def __init__(self, stdout: TextIO, *, is_terminal: bool) -> None:
        self._stdout = stdout
        self._is_terminal = is_terminal
        self._last = "\n"

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._last.endswith("\n"):
            self._stdout.write("\n")
            self._stdout.flush()

    def add(self, piece: Piece) -> None:
        text = piece.text.translate(_CONTROL_CHARACTERS) if self._is_terminal else piece.text
        if text:
            self._stdout.write(text)
            self._stdout.flush()
            self._last = text


class MarkdownDisplay:
    """Blocks (paragraphs, lists, code …) are rendered once they are complete, and stay.

    The block that still grows is shown as text below them, as far as the window has room, so
    that nothing is drawn twice however long the answer gets. Reasoning is dim, above it.
    """

    def __init__(self, console: Console) -> None:
        from markdown_it import MarkdownIt

        self._console = console
        self._parser = MarkdownIt().enable(["strikethrough", "table"])  # as rich's Markdown
        self._open_text = ""
        self._reasoning = ""
        self._live: Live | None = None

    def __enter__(self) -> MarkdownDisplay:
        from rich.live import Live

        self._live = Live(
            console=self._console, transient=True, refresh_per_second=_REDRAWS_PER_S,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._end_reasoning()
        self._print(self._open_text)
        self._open_text = ""

    def add(self, piece: Piece) -> None:
        self._reasoning += piece.reasoning.translate(_CONTROL_CHARACTERS)
        if piece.text:
            self._end_reasoning()
            self._open_text += piece.text.translate(_CONTROL_CHARACTERS)
            complete = self._complete_part()
            self._print(complete)
            self._open_text = self._open_text.removeprefix(complete)
        if self._live is not None:
            self._live.update(self._tail())

    def _complete_part(self) -> str:
        """All blocks but the last, to which the next piece may belong."""
        starts = [token.map[0] for token in self._parser.parse(self._open_text)
                  if token.level == 0 and token.map is not None]  # fmt: skip
        if len(starts) < 2 or not starts[-1]:
            return ""
        return "".join(self._open_text.splitlines(keepends=True)[: starts[-1]])

    def _print(self, text: str) -> None:
        from rich.markdown import Markdown

        if text.strip():
            self._console.print(Markdown(text))

    def _end_reasoning(self) -> None:
        from rich.text import Text

        if self._reasoning.strip():
            self._console.print(Text(self._reasoning.strip(), style="dim italic"))
        self._reasoning = ""

    def _tail(self) -> Text:
        """What is not rendered yet, as many of its last lines as there is room for."""
        from rich.text import Text

        text = Text(self._open_text or self._reasoning, style="" if self._open_text else "dim")
        lines = text.wrap(self._console, max(1, self._console.width))
        room = max(1, self._console.height - 2)
        return Text("\n").join(lines[-room:])


def tell(text: str) -> None:
    """A remark beside the answers; on stderr, so that it is never part of one."""
    print(text, file=sys.stderr, flush=True)
