"""A small model that guesses for a large one: `--draft-model`.

It follows each sequence in a KV slot of its own and writes its greedy continuation.
Used on the decode thread only.
"""

from __future__ import annotations

import dataclasses

from ferrum_local.errors import ModelLoadError
from ferrum_local.llm.context import ContextOptions, DecodeError, LlamaContext
from ferrum_local.llm.model import LlamaModel
from ferrum_local.llm.scheduler import common_prefix_length

# Prompt tokens it reads in one step, so that a long prompt does not hold up other streams.
_MAX_CATCH_UP = 64
_N_COMPARED_TOKENS = 2000


class DraftModel:
    """Owns the small model and its context.

    :param options: the large context's, but for ``flash_attn``; the small one has the same slots.
    :raises ModelLoadError: the two models do not share a vocabulary.
    """

    def __init__(self, path: str, target: LlamaModel, options: ContextOptions) -> None:
        self._model = LlamaModel(path)
        try:
            _check_same_vocabulary(self._model, target)
            self._context = LlamaContext(
                self._model, dataclasses.replace(options, n_outputs=options.n_slots, adapters=())
            )
        except BaseException:
            self._model.close()
            raise
        self._held: list[list[int]] = [[] for _ in range(options.n_slots)]
        self.relative_cost = self._model.size_bytes / max(1, target.size_bytes)

    def draft(self, slot: int, tokens: list[int], n_tokens: int) -> list[int]:
        """Greedy guesses of what follows ``tokens``.

        :returns: ``n_tokens`` guesses, or none while the slot still catches up with a long
            prompt.
        """
        held = self._held[slot]
        n_shared = min(common_prefix_length(held, tokens), len(tokens) - 1)
        if n_shared < len(held):
            self._cut(slot, n_shared)
        pending = tokens[len(self._held[slot]) :]
        if len(pending) > _MAX_CATCH_UP:
            self._decode(slot, pending[:_MAX_CATCH_UP], output="none")
            return []
        guesses: list[int] = []
        for _ in range(n_tokens):
            index = self._decode(slot, pending, output="last")
            if index is None:
                break
            guesses.append(int(self._context.logits(index).argmax()))
            pending = guesses[-1:]
        return guesses

    def _cut(self, slot: int, n_tokens: int) -> None:
        if not self._context.truncate_slot(slot, n_tokens):
            self._context.clear_slot(slot)
            n_tokens = 0
        del self._held[slot][n_tokens:]

    def _decode(self, slot: int, tokens: list[int], *, output: str) -> int | None:
        """Evaluate tokens; the batch index of the last one, None when that failed."""
        self._context.clear_batch()
        index = self._context.add_tokens(slot, tokens, len(self._held[slot]), output=output)
        try:
            self._context.decode()
        except DecodeError:
            # Guesses are optional: forget the slot and go on without them.
            self._context.clear_slot(slot)
            self._held[slot] = []
            return None
        self._held[slot] += tokens
        return index

    def close(self) -> None:
        self._context.close()
        self._model.close()


def _check_same_vocabulary(draft: LlamaModel, target: LlamaModel) -> None:
    n = draft.n_vocab
    sample = range(0, n, max(1, n // _N_COMPARED_TOKENS))
    same = n == target.n_vocab and all(
        draft.token_bytes(t, special=True) == target.token_bytes(t, special=True) for t in sample
    )
    if not same:
        raise ModelLoadError(
            f"{draft.path}: cannot draft for {target.path}, their vocabularies differ "
            f"({n} and {target.n_vocab} tokens); a draft model must be of the same family"
        )
