"""Text to the token ids that an embedding or rerank model reads, with its markers at the ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import llama_cpp

from ferrum_local.errors import InvalidRequest
from ferrum_local.llm.model import LlamaModel
from ferrum_local.llm.word_pieces import WordPieceTokenizer

_SEND_TEXT = (
    "if these are of another model, send the text instead (LangChain does with "
    "check_embedding_ctx_length=False)"
)


class Tokens(NamedTuple):
    ids: list[int]
    truncated: bool = False


class EmbeddingTokenizer:
    """Tokenizes for one model. Markers in the text itself are read as plain text.

    :param lowercase: for models of word pieces.
    """

    def __init__(self, model: LlamaModel, *, lowercase: bool = True) -> None:
        self._model = model
        vocab = model.vocab
        self._pieces: WordPieceTokenizer | None = None
        if llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_WPM:
            self._pieces = WordPieceTokenizer(model, lowercase=lowercase)
        eos = [llama_cpp.llama_vocab_eos(vocab)]
        sep = [llama_cpp.llama_vocab_sep(vocab)]
        adds_eos = llama_cpp.llama_vocab_get_add_eos(vocab)
        adds_sep = llama_cpp.llama_vocab_get_add_sep(vocab)
        self._head = [model.bos_token] if model.adds_bos else []
        self._tail = eos if adds_eos else sep if adds_sep else []
        self._between = (eos if adds_eos else []) + (sep if adds_sep else [])
        template = llama_cpp.llama_model_chat_template(model.handle, b"rerank")
        self._pair_template = template.decode("utf-8", errors="replace") if template else None

    def text(self, text: str, *, max_tokens: int | None = None) -> Tokens:
        """The ids of one text.

        :param max_tokens: cut the text so that no more come out; None: as many as it has.
        """
        return _joined(self._head, self._plain(text), self._tail, max_tokens)

    def ids(self, ids: Sequence[int], *, param: str, max_tokens: int | None = None) -> Tokens:
        """Ids that somebody else made of a text, with the markers around it.

        :param max_tokens: as in ``text``; the markers stay.
        :raises InvalidRequest: they are no ids of this model, or lack its markers. Ids of another
            model's vocabulary do, and their vector would mean nothing.
        """
        try:
            self._model.check_tokens(ids, param=param)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error.message}; {_SEND_TEXT}", param=error.param) from error
        n_head, n_tail = len(self._head), len(self._tail)
        begins, ends = list(ids[:n_head]), list(ids[len(ids) - n_tail :])
        if (begins, ends) != (self._head, self._tail) or len(ids) < n_head + n_tail:
            expected = " and ".join(
                f"{verb} with {tokens[0]}"
                for verb, tokens in (("begin", self._head), ("end", self._tail))
                if tokens
            )
            raise InvalidRequest(
                f"{param}: token ids of this model {expected}; {_SEND_TEXT}", param=param
            )
        return _joined(self._head, list(ids[n_head : len(ids) - n_tail]), self._tail, max_tokens)

    def pair(self, query: str, document: str, *, max_tokens: int | None = None) -> Tokens:
        """The ids of a query with a document, as a rerank model reads them.

        :param max_tokens: cut the document so that no more come out; the query is never cut.
        """
        if self._pair_template is None:
            head = [*self._head, *self._plain(query), *self._between]
            return _joined(head, self._plain(document), self._tail, max_tokens)
        before, _, after = self._pair_template.partition("{document}")
        first, _, second = before.partition("{query}")
        head = [*self._template(first), *self._plain(_end_spaces(first) + query)]
        head += self._template(second)
        ids = self._plain(_end_spaces(second) + document)
        return _joined(head, ids, self._template(after), max_tokens)

    def _template(self, text: str) -> list[int]:
        """A template's own text, whose markers are markers."""
        text = text[: len(text) - len(_end_spaces(text))]
        return self._model.tokenize(text, add_special=False, parse_special=True)

    def _plain(self, text: str) -> list[int]:
        if self._pieces is not None:
            return self._pieces.tokenize(text)
        return self._model.tokenize(text, add_special=False, parse_special=False)


def _joined(head: list[int], ids: list[int], tail: list[int], max_tokens: int | None) -> Tokens:
    n_room = len(ids) if max_tokens is None else max(0, max_tokens - len(head) - len(tail))
    return Tokens([*head, *ids[:n_room], *tail], truncated=n_room < len(ids))


def _end_spaces(text: str) -> str:
    """Spaces at the end; they are part of the token that follows."""
    return text[len(text.rstrip(" ")) :]
