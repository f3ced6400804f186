"""Which dialect a model speaks, by the text of its chat template."""

from __future__ import annotations

from ferrum_local.llm.dialects.answer import PlainFormat
from ferrum_local.llm.dialects.dialect import Dialect
from ferrum_local.llm.dialects.hermes import HermesCalls
from ferrum_local.llm.dialects.reasoning import KNOWN, THINK, Thinking


def detect(template: str | None, *, renders_tools: bool) -> Dialect:
    """The dialect of a model with this chat template.

    :param renders_tools: it writes tool definitions into the prompt; else the model is told
        of them by :meth:`Dialect.preamble`, and calls them as that says.
    """
    source = template or ""
    thinking, thinks = _thinking(source)
    format_ = PlainFormat(HermesCalls(), thinking=thinking, thinks=thinks)
    return Dialect("hermes" if renders_tools else "generic", format_)


def _thinking(source: str) -> tuple[Thinking, bool]:
    """The marks around reasoning, and whether the template speaks of them."""
    for thinking in KNOWN:
        if all(mark.strip() in source for mark in thinking.markers):
            return thinking, True
    return THINK, THINK.closing in source
