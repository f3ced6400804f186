"""Whatever form a prompt has → token ids, and what is to be known of the answer's form.

Runs on request threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ferrum_local.errors import ContextOverflow, InvalidRequest, Unsupported
from ferrum_local.llm.chat_format import ChatFormat
from ferrum_local.llm.constraint import AnswerForm
from ferrum_local.llm.dialects.interface import OutputParser
from ferrum_local.llm.model import LlamaModel
from ferrum_local.types import ChatPrompt, InferenceRequest, InfillPrompt, Prompt

_HUGE_TEXT = 1_000_000  # characters; shorter prompts are simply tokenized


class PreparedPrompt(NamedTuple):
    """``form`` is what an answer has to match. ``new_parser`` makes what tells the parts of one
    apart, or None: it has no parts; ``token_bytes`` are the tokens as that has to see them, and
    ``hidden`` those that nobody else sees."""

    tokens: list[int]
    form: AnswerForm | None
    new_parser: Callable[[], OutputParser | None]
    token_bytes: Callable[[int], bytes]
    hidden: Mapping[int, str]


class Prompts:
    """Makes the prompts of one model.

    :param n_ctx: tokens that a prompt and its answer have together.
    """

    def __init__(self, model: LlamaModel, chat: ChatFormat, *, n_ctx: int, model_id: str) -> None:
        self._model = model
        self._chat = chat
        self._n_ctx = n_ctx
        self._model_id = model_id

    def prepare(self, request: InferenceRequest) -> PreparedPrompt:
        """Everything that a request's prompt decides.

        :raises InvalidRequest: an empty prompt, a bad token id, a conversation the template
            refuses, tools that do not go with the rest.
        """
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            constraint = request.constraint
            form = None if constraint is None else AnswerForm(constraint)
            tokens = self.tokens(prompt)
            return PreparedPrompt(tokens, form, lambda: None, self._model.token_bytes, {})
        text = self._rendered(prompt)
        return PreparedPrompt(
            self._chat_tokens(text),
            self._chat.answer_form(prompt, text, request.constraint),
            self._chat.parsers(prompt, text),
            self._chat.token_bytes,
            self._chat.hidden if prompt.reasoning.separate else {},
        )

    def tokens(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt alone.

        :raises InvalidRequest: as ``prepare``.
        """
        if isinstance(prompt, ChatPrompt):
            return self._chat_tokens(self._rendered(prompt))
        self._refuse_huge(prompt, "prompt")
        if isinstance(prompt, InfillPrompt):
            tokens = self._infill_tokens(prompt)
        elif isinstance(prompt, str):
            tokens = self._model.tokenize(prompt, add_special=True, parse_special=True)
        else:
            tokens = list(prompt)
            self._model.check_tokens(tokens, param="prompt")
        if not tokens:
            raise InvalidRequest("prompt: expected at least one token", param="prompt")
        return tokens

    def _rendered(self, prompt: ChatPrompt) -> str:
        self._refuse_huge(prompt, "messages")
        text = self._chat.render(prompt)
        self._refuse_huge(text, "messages")
        return text

    def _chat_tokens(self, text: str) -> list[int]:
        model = self._model
        tokens = model.tokenize(text, add_special=False, parse_special=True)
        # Templates that write BOS themselves must not get a second one.
        if model.adds_bos and tokens[:1] != [model.bos_token]:
            tokens.insert(0, model.bos_token)
        if not tokens:
            raise InvalidRequest("messages: expected at least one token", param="messages")
        return tokens

    def _refuse_huge(self, prompt: Prompt, param: str) -> None:
        """Refuse text that no tokenizer could fit in, without rendering and tokenizing it.

        :raises ContextOverflow: with the fewest tokens that the text can be.
        """
        n_characters = _text_length(prompt)
        if n_characters < _HUGE_TEXT:
            return
        n_at_least = n_characters // self._model.max_token_bytes
        if n_at_least > self._n_ctx:
            raise ContextOverflow(
                n_prompt_tokens=n_at_least, n_ctx=self._n_ctx, at_least=True, param=param
            )

    def _infill_tokens(self, prompt: InfillPrompt) -> list[int]:
        before, after, middle = self._model.fim_tokens
        if min(before, after, middle) < 0:
            raise Unsupported(
                f"suffix: {self._model_id} has no fill-in-the-middle tokens", param="suffix"
            )
        bos = [self._model.bos_token] if self._model.adds_bos else []
        prefix, suffix = (
            self._model.tokenize(text, add_special=False, parse_special=False)
            for text in (prompt.prefix, prompt.suffix)
        )
        return [*bos, before, *prefix, after, *suffix, middle]


def _text_length(prompt: Prompt) -> int:
    """Characters of the prompt's own text; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, InfillPrompt):
        return len(prompt.prefix) + len(prompt.suffix)
    if isinstance(prompt, ChatPrompt):
        return sum(len(m.get("content") or "") for m in prompt.messages)
    return 0
