"""Small chat templates in the syntax of well-known model families, for tests."""

from __future__ import annotations

from pathlib import Path

from ferrum_local.llm.chat_template import ChatTemplate


def sample(name: str) -> str:
    """The text of one of the templates beside this file."""
    return (Path(__file__).parent / f"{name}.jinja").read_text(encoding="utf-8")


def chat_template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")
