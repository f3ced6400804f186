"""Answers that must match a grammar: compiling, matching, and masks over the vocabulary.

llguidance does the work on llama.cpp's own vocabulary. One :class:`GrammarCompiler` belongs to a
model, one :class:`Matcher` to a sequence, and one :class:`TokenMasks` to a decode thread.

Lark texts (constraints of kind ``lark``) have llguidance's extensions: ``%json {…}`` (write it
with :func:`ferrum_local.llm.grammar.json_rule`, which keeps the JSON compact), ``rule[lazy]``,
``rule[suffix="…"]``. A control token is written by its text, ``<|im_end|>``, or by its id,
``<[2]>``, in rules (lower case), not in terminals; so are tokens of the file's own that look like
``<tool_call>``. The same characters in quotes mean ordinary text, which such a token does not
match. :func:`mark_in_lark` writes a mark the one way or the other, as the model has it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from ferrum_local.errors import FerrumError, GenerationFailed, InvalidRequest, Unavailable
from ferrum_local.llm.grammar import (
    GrammarParts,
    encoded,
    framed,
    grammar_of,
    limits,
    one_line,
    quoted,
)
from ferrum_local.llm.model import LlamaModel
from ferrum_local.llm.schema_faults import find_fault
from ferrum_local.types import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer  # see grammar.py

logger = logging.getLogger(__name__)

STACK_BYTES = 64 * 1024 * 1024  # address space, not memory; see MAX_RULES in grammar.py
_MAX_MASK_THREADS = 8
_SPECIAL_PREFIX = b"\xff"  # how llguidance is told that a token is no text
_TOO_COMPLEX = ("LexerTooComplex", "ParserTooComplex")
_DEAD_END = "NoExtensionBias"
_LIMIT_MESSAGES = ("parser error: Too many", "lexer error")
_NEGATIVE_INFINITY = float("-inf")


class AnswerForm(NamedTuple):
    """What a whole answer has to match.

    ``frame`` is a Lark text, in which ``@answer`` stands for ``constraint``; None: the constraint
    is all there is. ``param`` is the request's field that the frame comes from, ``parts`` the
    constraints that were written into it.
    """

    constraint: Constraint | None = None
    frame: str | None = None
    param: str = ""
    parts: tuple[Constraint, ...] = ()


class Matcher:
    """One sequence's place in its grammar. Used by one thread at a time.

    :param eog_tokens: tokens that end a sequence; a grammar may name them, too.
    :param param: the request's field, for errors.
    """

    def __init__(self, native: LLMatcher, eog_tokens: frozenset[int], param: str) -> None:
        self.native = native
        self.eog_tokens = eog_tokens
        self._param = param
        self._must_end = False
        self.n_accepted = 0

    def clone(self) -> Matcher:
        """Another sequence's, at the same place."""
        return Matcher(self.native.deep_copy(), self.eog_tokens, self._param)

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow: the text is complete, or only an end token is allowed."""
        return self._must_end or (self.native.is_stopped() and not self.native.is_error())

    def accept(self, token: int) -> None:
        """Take a token that was sampled.

        :raises FerrumError: the matcher cannot go on, and neither can its sequence.
        """
        self.native.consume_token(token)
        self.n_accepted += 1
        self.check()

    def take_forced(self, n_most: int) -> list[int]:
        """The tokens that must follow, at most ``n_most``; they are accepted already.

        They are what the tokenizer makes of the text. A token that could be another one when
        more text follows is not among them.

        :raises FerrumError: as ``accept``.
        """
        forced = [] if self.is_finished else self.native.compute_ff_tokens()
        n_text = next((i for i, t in enumerate(forced) if t in self.eog_tokens), len(forced))
        taken = forced[: min(n_text, n_most)]
        if taken:
            self.native.consume_tokens(taken)
            self.n_accepted += len(taken)
            self.check()
        self._must_end = n_text < len(forced) and len(taken) == n_text
        return taken

    def next_forced(self) -> int | None:
        """The token that must follow, if there is just one; it is not accepted yet."""
        forced = self.native.compute_ff_tokens()
        return forced[0] if forced else None

    def n_possible(self, tokens: list[int]) -> int:
        """How many of ``tokens`` could follow."""
        return self.native.validate_tokens(tokens)

    def check(self) -> None:
        """:raises FerrumError: the matcher met a limit, or a fault."""
        if not self.native.is_error():
            return
        message = one_line(self.native.get_error())
        if self.native.stop_reason() == _DEAD_END:
            raise InvalidRequest(
                f"{self._param}: the grammar came to a point where nothing can follow",
                param=self._param,
            )
        if self.native.stop_reason() in _TOO_COMPLEX or message.startswith(_LIMIT_MESSAGES):
            raise InvalidRequest(
                f"{self._param}: the grammar is too complex ({message})", param=self._param
            )
        raise GenerationFailed(f"{self._param}: the answer cannot go on ({message})")


class TokenMasks:
    """Which tokens may follow, one row of bits for each slot."""

    def __init__(self, n_slots: int, model: LlamaModel, n_threads: int) -> None:
        from llguidance import LLExecutor

        self._n_vocab = model.n_vocab
        n_tokens = model.n_vocab + (not model.eog_tokens)  # as in ``build_tokenizer``
        self._bits = np.zeros((n_slots, (n_tokens + 31) // 32), dtype=np.int32)
        self._executor = LLExecutor(min(n_threads, _MAX_MASK_THREADS))
        self._filled: dict[int, tuple[Matcher, int]] = {}  # slot -> whose mask, and from where

    def fill(self, matchers: Sequence[tuple[Matcher, int]]) -> None:
        """Compute the rows of one or more slots, side by side."""
        n_rows, n_words = self._bits.shape
        rows = [(matcher.native, slot) for matcher, slot in matchers]
        self._executor.unsafe_compute_mask_ptr(rows, self._bits.ctypes.data, 4 * n_words, n_rows)
        self._filled.update((slot, (matcher, matcher.n_accepted)) for matcher, slot in matchers)

    def apply(
        self, matcher: Matcher, slot: int, logits: npt.NDArray[np.float32], *, may_end: bool
    ) -> int:
        """Leave in ``logits`` only what may follow, and fill the row first if it is not.

        :param may_end: False: no end token, unless nothing else is left.
        :returns: the likeliest token.
        :raises FerrumError: as ``Matcher.accept``.
        """
        if self._filled.get(slot) != (matcher, matcher.n_accepted):
            self.fill([(matcher, slot)])
        matcher.check()
        allowed = np.unpackbits(
            self._bits[slot].view(np.uint8), count=self._n_vocab, bitorder="little"
        )
        if not may_end:
            ends = list(matcher.eog_tokens)
            before = allowed[ends]
            allowed[ends] = 0
            if not allowed.any():
                allowed[ends] = before
        np.putmask(logits, allowed == 0, _NEGATIVE_INFINITY)
        best = int(logits.argmax())
        # A row of nothing but -inf would abort in native code.
        if not np.isfinite(logits[best]):
            raise GenerationFailed("The model gives no chance to anything that the grammar allows.")
        return best


class GrammarCompiler:
    """Compiles constraints for one model, on a thread of its own.

    For its first constraint the thread builds the tokenizer: 0.2 s and 40 MB, or 2 s for a large
    vocabulary, which those who never ask for a grammar do not pay. The library recurses deeply,
    so the thread has a larger stack than those of requests. ``compile`` may be called from any
    thread.
    """

    def __init__(self, model: LlamaModel, name: str) -> None:
        self._model = model
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._tokenizer: LLTokenizer | None = None
        self._thread = threading.Thread(target=self._run, name=f"grammar-{name}", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(before)

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of the constraint's grammar.

        :raises InvalidRequest: the constraint cannot be met, naming field and keyword.
        :raises Unavailable: the model is being unloaded.
        """
        return self._matcher(grammar_of(constraint), constraint)

    def compile_form(self, form: AnswerForm) -> Matcher:
        """A matcher at the beginning of a whole answer.

        :raises InvalidRequest, Unavailable: as ``compile``.
        """
        if form.frame is None:
            assert form.constraint is not None
            return self.compile(form.constraint)
        grammar = [] if form.constraint is None else grammar_of(form.constraint)
        whole = Constraint(kind="lark", param=form.param)
        try:
            return self._matcher(framed(grammar, form.frame), whole)
        except InvalidRequest:
            # Alone, a part tells which one of them is at fault, and where.
            for part in (form.constraint, *form.parts):
                if part is not None:
                    self.compile(part)
            raise

    def _matcher(self, grammar: GrammarParts, constraint: Constraint) -> Matcher:
        result: Future[Matcher] = Future()

        def job() -> None:
            try:
                result.set_result(self._compile(grammar, constraint))
            except BaseException as error:  # a panic in Rust is no Exception
                result.set_exception(error)

        with self._lock:
            if self._closed:
                raise Unavailable("The model was unloaded.", retry_after_s=5)
            self._jobs.put(job)
        try:
            return result.result()
        except FerrumError:
            raise
        except BaseException as error:
            if not is_fault(error):
                raise
            raise GenerationFailed("The grammar could not be compiled.") from error

    def close(self) -> None:
        """End the thread and wait for it. Nothing is compiled any more."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        job = self._jobs.get()
        if job is not None:
            self._build_tokenizer()
        while job is not None:
            job()
            job = self._jobs.get()

    def _build_tokenizer(self) -> None:
        with contextlib.suppress(Unavailable), self._model.in_use():
            try:
                self._tokenizer = build_tokenizer(self._model)
            except BaseException:
                logger.exception("answers cannot be constrained: no tokenizer for the grammars")

    def _compile(self, grammar: GrammarParts, constraint: Constraint) -> Matcher:
        if self._tokenizer is None:
            raise GenerationFailed("This model's vocabulary cannot be constrained.")
        param = constraint.param
        with self._model.in_use():
            from llguidance import LLMatcher

            native = LLMatcher(self._tokenizer, encoded(grammar), log_level=0, limits=limits())
            # The first mask, too: what is too complex for it is better known now.
            if not native.is_error() and not native.is_stopped():
                native.compute_bitmask()
        if native.is_error():
            raise _refusal(constraint, native)
        return Matcher(native, self._model.eog_tokens, param)


def _refusal(constraint: Constraint, native: LLMatcher) -> InvalidRequest:
    message = _first_paragraph(native.get_error())
    if native.stop_reason() == _DEAD_END or _DEAD_END in message:
        message = "nothing can match this"
    path, problem = constraint.param, message
    if constraint.kind == "json_schema":
        path, problem = find_fault(constraint.value, message, _complaint, constraint.param)
    return InvalidRequest(f"{path}: {one_line(problem)}", param=path)


def _complaint(schema: dict[str, Any]) -> str | None:
    """What the library says of a schema; None: nothing."""
    from llguidance import LLMatcher

    try:
        message = LLMatcher.validate_grammar(encoded([{"json_schema": schema}]), limits=limits())
    except ValueError as error:
        message = str(error)
    return _first_paragraph(message) or None


def _first_paragraph(message: str) -> str:
    return message.replace("<non-verbose/>", "").strip()


def is_fault(error: BaseException) -> bool:
    """Whether this is an error or a panic in Rust, rather than something that ends the process."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def build_tokenizer(model: LlamaModel) -> LLTokenizer:
    """llguidance's view of a model's vocabulary. It keeps a pointer to it, and calls
    ``llama_tokenize`` with that, so it must not be used once the model is closed."""
    from llguidance import LLTokenizer

    tokens = []
    buffer = ctypes.create_string_buffer(16 * 1024)
    for token in range(model.n_vocab):
        n = llama_cpp.llama_token_to_piece(
            model.vocab, token, buffer, len(buffer), 0, True
        )  # fmt: skip
        piece = ctypes.string_at(buffer, max(n, 0))
        if _is_special(model, token, piece):
            piece = _SPECIAL_PREFIX + piece
        elif _SPECIAL_PREFIX in piece:
            # A byte that is in no UTF-8 text, and would look like the beginning of a mark.
            piece = b""
        tokens.append(piece)
    ends: list[int] = sorted(model.eog_tokens)
    if not ends:  # there is none; llguidance needs one
        ends = [len(tokens)]
        tokens.append(b"")
    function = ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
    return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined, no-any-return]
        tokens=tokens, vocab_ptr=model.vocab, tokenize_fptr=function, eos_token=ends
    )


def _is_special(model: LlamaModel, token: int, piece: bytes) -> bool:
    attributes = llama_cpp.llama_vocab_get_attr(model.vocab, token)
    if attributes & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL:
        return True
    looks_like_mark = piece.startswith(b"<") and piece.endswith(b">")
    return looks_like_mark and bool(attributes & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)


def mark_in_lark(model: LlamaModel, text: str) -> str:
    """A mark such as ``</think>`` as written in a Lark rule: a special token by its id, and
    anything else as quoted text."""
    tokens: Sequence[int] = model.tokenize(text, add_special=False, parse_special=True)
    if len(tokens) == 1:
        with model.in_use():
            if _is_special(model, tokens[0], text.encode()):
                return f"<[{tokens[0]}]>"
    return quoted(text)
