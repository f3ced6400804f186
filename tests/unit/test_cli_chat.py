"""The parts of ``ferrum-local chat``: reading messages, keeping them, showing answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ferrum_local.cli.chat.answers import Piece
from ferrum_local.cli.chat.conversation import Conversation
from ferrum_local.cli.chat.display import MarkdownDisplay, PlainDisplay
from ferrum_local.cli.chat.session import MORE, PROMPT, read_message
from ferrum_local.errors import FerrumError


def typed(*lines: str) -> Callable[[str], str]:
    """A person who types these lines and then ends the input."""
    left = list(lines)

    def read_line(prompt: str) -> str:
        assert prompt == (PROMPT if len(left) == len(lines) else MORE)
        if not left:
            raise EOFError
        return left.pop(0)

    return read_line


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello"], "hello"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (["one\\"], "one"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "  indented", '"""'], "  indented"),
        (['"""all on one line"""'], "all on one line"),
        (['"""', "never closed"], "never closed"),
        (['say """ aloud'], 'say """ aloud'),
    ],
)
def test_a_message_may_have_several_lines(lines: list[str], message: str) -> None:
    assert read_message(typed(*lines)) == message


def test_the_end_of_input_is_told_apart_from_an_empty_line() -> None:
    assert read_message(typed("")) == ""
    with pytest.raises(EOFError):
        read_message(typed())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(st.characters(exclude_characters='\\"\n\r')), min_size=1))
def test_what_is_put_within_quotes_comes_out(lines: list[str]) -> None:
    message = read_message(typed('"""', *lines, '"""'))
    assert message == "\n".join(lines).strip("\n")


# Conversation


def test_an_empty_answer_takes_its_question_away() -> None:
    conversation = Conversation("be brief")
    conversation.ask("one")
    conversation.answer("1")
    conversation.ask("two")
    conversation.answer("")
    roles = [message["role"] for message in conversation.messages()]
    assert roles == ["system", "user", "assistant"]
    conversation.reset()
    assert conversation.messages() == [{"role": "system", "content": "be brief"}]


def test_a_conversation_is_saved_as_markdown_or_messages_and_never_over_a_file(
    tmp_path: Path,
) -> None:
    conversation = Conversation()
    conversation.ask("Grüße?")
    conversation.answer("🦙")
    conversation.save(tmp_path / "talk.md")
    conversation.save(tmp_path / "talk.json")
    assert (tmp_path / "talk.md").read_text("utf-8") == "## You\n\nGrüße?\n\n## Model\n\n🦙\n"
    assert json.loads((tmp_path / "talk.json").read_text("utf-8")) == conversation.messages()
    with pytest.raises(FerrumError, match="there already"):
        conversation.save(tmp_path / "talk.md")
    with pytest.raises(FerrumError, match="cannot be written"):
        conversation.save(tmp_path / "none" / "talk.md")


# Display

MARKDOWN = """\
# Title

Some **bold** text
on two lines.

- one
- two

```python
x = 1

y = 2
```

Done."""


def shown(pieces: list[Piece], *, width: int = 60) -> str:
    """What stays on a screen that keeps no transient lines."""
    out = io.StringIO()
    with MarkdownDisplay(Console(file=out, width=width, force_terminal=False)) as display:
        for piece in pieces:
            display.add(piece)
    return out.getvalue()


def test_markdown_is_rendered() -> None:
    text = shown([Piece(MARKDOWN)])
    assert "**" not in text and "```" not in text
    for words in ("Title", "Some bold text on two lines.", "• one", "y = 2", "Done."):
        assert words in text


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, len(MARKDOWN)), max_size=12))
def test_markdown_looks_the_same_however_it_is_cut(cuts: list[int]) -> None:
    bounds = sorted({0, *cuts, len(MARKDOWN)})
    pieces = [Piece(MARKDOWN[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    assert shown(pieces).split() == shown([Piece(MARKDOWN)]).split()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(st.characters(codec="utf-8"))))
def test_any_text_can_be_shown(texts: list[str]) -> None:
    shown([Piece(text) for text in texts])


def test_reasoning_stands_before_the_answer() -> None:
    text = shown([Piece(reasoning="Let me "), Piece(reasoning="see."), Piece("Four.")])
    assert text.split() == ["Let", "me", "see.", "Four."]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_plain_text_is_whole_and_steers_no_terminal(is_terminal: bool) -> None:
    out = io.StringIO()
    with PlainDisplay(out, is_terminal=is_terminal) as display:
        display.add(Piece("a\x1b[2Jb\n", reasoning="hm"))
        display.add(Piece("**c**"))
    wanted = "a[2Jb\n**c**\n" if is_terminal else "a\x1b[2Jb\n**c**\n"
    assert out.getvalue() == wanted
