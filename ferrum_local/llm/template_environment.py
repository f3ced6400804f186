"""The sandboxed Jinja environment that chat templates run in.

It offers what Hugging Face's ``apply_chat_template`` offers: trimmed blocks, loop controls,
``raise_exception``, ``strftime_now``, a ``tojson`` that is plain ``json.dumps``, and
``{% generation %}`` blocks. On top of that every render has a :class:`Budget`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ferrum_local.llm.template_budget import Budget, BudgetExceeded

MAX_SOURCE_CHARS = 2**20
MAX_JSON_INDENT = 16

_UNSAFE_STR_METHODS = frozenset({"encode", "translate", "maketrans"})
_SIZED_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "truncate", "wordwrap"})
_TEXT_FILTERS = frozenset(
    "capitalize center e escape forceescape format indent lower pprint replace string striptags "
    "title tojson trim truncate upper urlencode urlize wordcount wordwrap".split()
)
_PADDING_STR_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})


class TemplateUnusable(Exception):
    """The template's text cannot be used at all; says why."""


class TemplateRefused(Exception):
    """The template does not render these messages; the text is its own words.

    ``deliberate``: it called ``raise_exception``, rather than running into an error.
    """

    def __init__(self, words: str, *, deliberate: bool) -> None:
        super().__init__(words)
        self.deliberate = deliberate


class SandboxedTemplate:
    """A compiled chat template. Safe to render on many threads at once.

    ``variables``: names that it reads, and does not set itself.

    :raises TemplateUnusable: when ``source`` does not compile.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateUnusable(f"it is longer than {MAX_SOURCE_CHARS} characters")
        self._environment = TemplateEnvironment()
        try:
            with self._environment.spending(Budget()):
                tree = _Bounded().visit(self._environment.parse(source))
                self.variables = frozenset(meta.find_undeclared_variables(tree))
                self._template = self._environment.from_string(tree)
        except Exception as error:  # the text may upset any part of two compilers
            raise TemplateUnusable(_words(error)) from error

    @property
    def global_names(self) -> frozenset[str]:
        """Names that every template can use without being given them."""
        return frozenset(self._environment.globals) | {"strftime_now"}

    def render(
        self, variables: Mapping[str, Any], *, now: Callable[[], datetime], budget: Budget
    ) -> str:
        """Render.

        :raises TemplateRefused: when the template raises anything.
        :raises BudgetExceeded: when it wants more than ``budget`` has.
        """

        def strftime_now(format: str) -> str:
            budget.spend_on_format(format, ())
            return now().strftime(format)

        try:
            with self._environment.spending(budget):
                return self._template.render({**variables, "strftime_now": strftime_now})
        except BudgetExceeded:
            raise
        except _RaisedByTemplate as error:
            raise TemplateRefused(_words(error), deliberate=True) from error
        except Exception as error:  # a template can raise whatever Python can
            raise TemplateRefused(_words(error), deliberate=False) from error


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with Hugging Face's helpers and a budget per render."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationBlock],
            finalize=self._finalize,
        )
        self._render = threading.local()
        # An instance attribute on purpose: compiled templates ask the environment for it.
        self.concat = self._bounded_concat  # type: ignore[method-assign]
        self.globals["raise_exception"] = _raise_exception
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        self.filters = {name: self._bounded_filter(name, f) for name, f in self.filters.items()}
        self.filters["_each"] = self._each

    # Operators that can make much out of little are asked about first.
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    @property
    def _budget(self) -> Budget:
        budget: Budget = self._render.budget
        return budget

    @contextmanager
    def spending(self, budget: Budget) -> Iterator[None]:
        """Charge what this thread does with templates to ``budget``."""
        self._render.budget = budget
        try:
            yield
        finally:
            del self._render.budget

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (int, float, bytes)):  # to_bytes(10**9) and the like
            return False
        if isinstance(obj, str) and attr in _UNSAFE_STR_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._budget.spend_on_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = self._budget
        budget.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            args = self._check_str_method(obj.__name__, owner, args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        budget.spend_on(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern, inner = value.__self__, wrapped

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            self._budget.spend_on_format(pattern, [*args, *kwargs.values()])
            return inner(*args, **kwargs)

        return bounded_format

    def _check_str_method(
        self, name: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Count a string method's result before it runs; returns the arguments to call it with."""
        budget = self._budget
        if name in _PADDING_STR_METHODS:
            budget.check_numbers(args, kwargs)
            tabsize = next((v for v in (*args, *kwargs.values()) if isinstance(v, int)), 8)
            budget.spend(len(text) + (text.count("\t") if name == "expandtabs" else 1) * tabsize)
        elif name == "join" and args:
            items = list(args[0])  # may be a generator: it can be read only once
            budget.spend_on_join(text, items)
            return (items, *args[1:])
        elif name == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]):
            budget.spend_on_replace(text, args[0], args[1])
        return args

    def _finalize(self, value: Any) -> Any:
        if isinstance(value, (list, tuple, dict)):
            self._budget.spend_on_text_of(value)
        return value

    def _bounded_concat(self, parts: Iterable[str]) -> str:
        budget = self._budget
        kept = []
        for part in parts:
            budget.step()
            budget.spend(len(part))
            kept.append(part)
        text = "".join(kept)
        budget.spend(len(text))
        return text

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        """Count the rounds of a ``for`` loop."""
        budget = self._budget
        for item in items:
            budget.step()
            yield item

    def _bounded_filter(self, name: str, filter_function: Callable[..., Any]) -> Callable[..., Any]:
        # Jinja passes some filters their context first; wraps() keeps the mark that says so.
        n_hidden = 1 if hasattr(filter_function, "jinja_pass_arg") else 0

        @wraps(filter_function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget
            budget.step()
            hidden, given = args[:n_hidden], args[n_hidden:]
            given = self._check_filter(name, given, kwargs)
            result = filter_function(*hidden, *given, **kwargs)
            budget.spend_on(result)
            return result

        return bounded

    def _check_filter(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Count a filter's result before it runs; returns the arguments to call it with."""
        budget = self._budget
        value, options = args[0], args[1:]
        settings = (*options, *kwargs.values())
        if name in _SIZED_FILTERS:
            budget.check_numbers(options, kwargs)
        if name in _TEXT_FILTERS:
            budget.spend_on_text_of(value)
        if name == "format":
            budget.spend_on_format(str(value), settings)
        elif name == "join" and not isinstance(value, str):
            items = list(value)
            separator = options[0] if options else kwargs.get("d", "")
            budget.spend_on_join(str(separator), items)
            return (items, *options)
        elif name == "replace" and len(options) >= 2:
            budget.spend_on_replace(str(value), str(options[0]), str(options[1]))
        elif name in ("indent", "wordwrap"):  # at worst every character ends a line
            widths = [len(s) if isinstance(s, str) else int(s or 0) for s in settings]
            n_lines = str(value).count("\n") + 1 if name == "indent" else len(str(value))
            budget.spend(len(str(value)) + n_lines * max(widths, default=4))
        elif name == "sum" and any(isinstance(s, (list, tuple)) for s in settings):
            raise BudgetExceeded("it adds up lists")
        return args


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Bounded(NodeTransformer):
    """Rewrite a template so that its loops and its ``~`` run through counted operations."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        first, *rest = (_filtered(part, "string") for part in node.nodes)
        joined: nodes.Expr = first
        for part in rest:
            joined = nodes.Add(joined, part, lineno=node.lineno)
        return joined


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _RaisedByTemplate(TemplateError):
    """What ``raise_exception`` raises."""


def _raise_exception(message: object) -> None:
    raise _RaisedByTemplate(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's ``tojson``: no HTML escaping, and these options of ``json.dumps``."""
    if isinstance(indent, int) and indent > MAX_JSON_INDENT:
        raise BudgetExceeded(f"it indents JSON by more than {MAX_JSON_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _words(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return text or type(error).__name__
