"""Pieces of llguidance's Lark grammars, and the frame that they have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrum_local.errors import Unsupported
from ferrum_local.llm.dialects.tools import Tool, count
from ferrum_local.llm.schema_numbers import with_safe_numbers

# One space or none where JSON allows whitespace between items: models are trained on both, and
# with more a small one could go on forever.
_JSON_OPTIONS = {"item_separator": ", ?", "key_separator": ": ?", "whitespace_flexible": False}


# In one answer, where several are allowed: a small model could go on forever.
MAX_CALLS = 16

FREE = "FREE"  # the rule for any text


def text(literal: str) -> str:
    """``literal`` as a Lark string."""
    return json.dumps(literal)


@dataclass
class Lark:
    """A grammar that is being written.

    :param tools: those that may be called.
    :param forced: a call is demanded; else the model may also answer in text.
    :param parallel: there may be several calls.
    :param special: how a special token is written, None where the vocabulary has none of that text.
    :param answer: an expression for the answer's text, where it has to have a form.
    :param max_thought_tokens: reasoning is closed after so many.
    """

    tools: Sequence[Tool]
    forced: bool
    parallel: bool
    special: Callable[[str], str | None]
    answer: str = ""
    max_thought_tokens: int | None = None
    rules: dict[str, str] = field(default_factory=dict)

    def mark(self, literal: str) -> str:
        """A mark of the family: the special token, or its text."""
        return self.special(literal) or text(literal)

    def rule(self, name: str, expression: str) -> str:
        """Add a rule, and return its name."""
        self.rules[name] = expression
        return name

    def json(self, name: str, schema: Mapping[str, Any]) -> str:
        """A rule for JSON that fits ``schema``."""
        schema = {"x-guidance": _JSON_OPTIONS, **with_safe_numbers(dict(schema), "parameters")}
        return self.rule(name, f"%json {json.dumps(schema)}")

    def space(self) -> str:
        """One space or none."""
        self.rules["SP"] = '" "'
        return "SP?"

    def line(self) -> str:
        """A line break or none."""
        self.rules["LINE"] = r"/\n/"
        return "LINE?"

    def gap(self) -> str:
        """A little whitespace, or none, between parts of an answer."""
        self.rules["GAP"] = r"/[ \n]{1,2}/"
        return "GAP?"

    def calls(self, one: Callable[[int, Tool], str]) -> str:
        """A rule for any one of the tools' calls, each as ``one`` writes it."""
        return self.rule("call", " | ".join(one(i, tool) for i, tool in enumerate(self.tools)))

    def arguments(self, i: int, tool: Tool) -> str:
        return self.json(f"arguments_{i}", tool.schema)

    def json_call(
        self,
        i: int,
        tool: Tool,
        name_key: str,
        arguments_key: str,
        *,
        before: str = "",
        after: str = "",
    ) -> str:
        """One call as a JSON object of a name and arguments.

        :param before: what stands before the name, such as another key.
        :param after: what stands behind the arguments.
        """
        sp = self.space()
        name = f"{text(json.dumps(name_key) + ':')} {sp} {text(json.dumps(tool.name) + ',')}"
        key = text(json.dumps(arguments_key) + ":")
        before = f"{before} {sp}" if before else ""
        return f'"{{" {before} {name} {sp} {key} {sp} {self.arguments(i, tool)} {after} "}}"'

    def listed(self, call: str) -> str:
        """An array of calls."""
        # A few templates indent it.
        self.rules["INDENT"] = r"/\n {0,4}/"
        calls = self.several(call, separator=f'"," ({self.space()} | INDENT)')
        return f'"[" INDENT? {calls} INDENT? "]"'

    def in_order(self, items: Sequence[tuple[str, bool]], *, separator: str) -> str:
        """Items in the order given, with separators between those that are there.

        :param items: expressions, and whether they have to be there.
        """
        starts = []  # one for each item that may be the first
        for i, (item, required) in enumerate(items):
            rest = " ".join(
                f"({separator} {later}){'' if needed else '?'}" for later, needed in items[i + 1 :]
            )
            starts.append(f"{item} {rest}")
            if required:
                break
        optional = "" if any(required for _, required in items) else "?"
        return f"({' | '.join(starts)}){optional}" if starts else ""

    def several(self, call: str, *, separator: str) -> str:
        """Calls one after another."""
        return f"{call} " + self.repeated(f"{separator} {call}")

    def repeated(self, expression: str) -> str:
        """What stands between one call and another, and the other; as often as calls may come."""
        return f"({expression}){{0,{MAX_CALLS - 1}}}" if self.parallel else ""

    def free(self, not_starting: str = "") -> str:
        """Any text.

        :param not_starting: a regular expression of how it does not begin.
        """
        self.rules[FREE] = r"/(?s:.*)/"
        if not_starting:
            self.rules[FREE] += f" & ~/(?:{not_starting})(?s:.*)/"
        return FREE

    def up_to(self, name: str, mark: str, before: str = "ANY") -> str:
        """Text, and the first ``mark`` in it as its end."""
        if before == "ANY":
            self.rules["ANY"] = r"/(?s:.*)/"
        if token := self.special(mark):  # free text never contains a special token
            return self.rule(name, f"{before} {token}")
        self.rules[f"{name}[lazy]"] = f"{before} {text(mark)}"
        return name

    def thought(self, mark: str) -> str:
        """Reasoning, and the ``mark`` that closes it.

        :raises Unsupported: it is to be limited, but its mark is no token of its own.
        """
        n_most = self.max_thought_tokens
        if n_most is None:
            return self.up_to("thought", mark)
        token = self.special(mark)
        if token is None:
            raise Unsupported(
                f"reasoning_budget_tokens: this model has no token for {mark!r}, which would "
                f"close its reasoning",
                param="reasoning_budget_tokens",
            )
        if not n_most:
            return self.rule("thought", token)
        self.rules["ANY"] = r"/(?s:.*)/"
        self.rules[f"thinking[max_tokens={n_most}]"] = "ANY"
        return self.rule("thought", f"thinking {token}")

    def regex_up_to(self, name: str, regex: str, mark: str) -> str:
        """Text that fits a regular expression, and ``mark`` at the first place where it may end."""
        if token := self.special(mark):
            self.rules[name.upper()] = f"/{regex}/"
            return self.rule(name, f"{name.upper()} {token}")
        self.rules[f"{name}[lazy]"] = f"/{regex}{pattern(mark)}/"
        return name

    def render(self, start: str) -> str:
        lines = ["%llguidance {}", f"start: {start}"]
        lines += [f"{name}: {expression}" for name, expression in self.rules.items()]
        return "\n".join(lines) + "\n"


def any_text(schema: Mapping[str, Any]) -> str:
    """A regular expression for text as long as ``schema`` allows."""
    high = count(schema, "maxLength")
    return f"(?s:.{{{count(schema, 'minLength') or 0},{'' if high is None else high}}})"


def pattern(literal: str) -> str:
    """``literal`` for use inside ``/…/``; a needless backslash can mean something there."""
    return re.sub(r"([\\/.+*?()|\[\]{}^$])", r"\\\1", literal)
