"""BERT's tokenizer, for models whose vocabulary is made of word pieces.

llama.cpp has one too, but it treats scripts with combining marks (Hindi, Korean, Thai) otherwise
than the models were trained with: it drops vowel signs and all but the first letter of a Hangul
syllable. Hugging Face's ``tokenizers`` is what they were trained with.
"""

from __future__ import annotations

import llama_cpp
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from ferrum_local.llm.model import LlamaModel

_BEGINS_WORD = "\u2581"  # llama.cpp marks the beginnings of words, BERT their continuations
_MAX_WORD_CHARS = 100  # as BERT: a longer word is unknown


class WordPieceTokenizer:
    """Turns text into token ids, without the markers at its ends.

    :param lowercase: as the GGUF says; accents are stripped along with it, as BERT does.
    """

    def __init__(self, model: LlamaModel, *, lowercase: bool) -> None:
        vocabulary: dict[str, int] = {}
        unknown = "[UNK]"
        for token in range(model.n_vocab):
            text = model.vocabulary_text(token)
            attributes = llama_cpp.llama_vocab_get_attr(model.vocab, token)
            if attributes & llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN:
                unknown = text
            if attributes & (
                llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
            ):
                piece = text
            elif text.startswith(_BEGINS_WORD):
                piece = text[1:]
            else:
                piece = f"##{text}"
            vocabulary.setdefault(piece, token)
        self._tokenizer = Tokenizer(
            WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=_MAX_WORD_CHARS)
        )
        self._tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
        self._tokenizer.pre_tokenizer = BertPreTokenizer()

    def tokenize(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
