"""One sequence's sampler: llama.cpp's native chain, built from ``SamplingParams``.

The order is llama.cpp's own default: bias (before the chain, see ``add_biases``), penalties, DRY,
top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature, draw. Mirostat replaces everything
after the penalties.
"""

from __future__ import annotations

import collections
import ctypes
import secrets
import threading
from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from ferrum_local.errors import InvalidRequest
from ferrum_local.llm import quick_calls
from ferrum_local.llm.model import LlamaModel
from ferrum_local.types import SamplingParams

# Below this, dividing logits by the temperature could overflow float32 to inf and
# NaN, which aborts in native code; the distribution is a single token by then.
_MIN_TEMPERATURE = 1e-3
_RANDOM_SEED = 0xFFFFFFFF  # LLAMA_DEFAULT_SEED: llama.cpp would draw its own
_NEGATIVE_INFINITY = float("-inf")
_IMPOSSIBLE = 1e-9  # of the likeliest token's probability


def resolve_seed(seed: int | None, choice_index: int) -> int:
    """The 32-bit seed of one choice; None or -1 draws a fresh random one.

    Choices of one request differ, and the same request gives the same choices again.
    """
    if seed is None or seed == -1:
        return secrets.randbelow(_RANDOM_SEED)
    folded = (seed ^ (seed >> 32)) + choice_index
    return (folded & 0xFFFFFFFF) % _RANDOM_SEED


class DryPrototypes:
    """DRY samplers to clone from: making one reads the whole vocabulary for each breaker.

    Any thread may use it; the few most recent settings are kept.
    """

    def __init__(self, capacity: int = 8) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._samplers: collections.OrderedDict[tuple[object, ...], int] = collections.OrderedDict()

    def sampler(self, model: LlamaModel, p: SamplingParams, last_n: int) -> int:
        """A fresh sampler, owned by the caller."""
        key = (p.dry_multiplier, p.dry_base, p.dry_allowed_length, last_n, p.dry_sequence_breakers)
        with self._lock:
            prototype = self._samplers.get(key)
            if prototype is None:
                prototype = self._samplers[key] = self._make(model, p, last_n)
                if len(self._samplers) > self._capacity:
                    _, oldest = self._samplers.popitem(last=False)
                    llama_cpp.llama_sampler_free(oldest)
            self._samplers.move_to_end(key)
            clone: int = llama_cpp.llama_sampler_clone(prototype)
            return clone

    @staticmethod
    def _make(model: LlamaModel, p: SamplingParams, last_n: int) -> int:
        breakers = [b.encode("utf-8", errors="replace") for b in p.dry_sequence_breakers]
        array = (ctypes.c_char_p * len(breakers))(*breakers)
        prototype: int = llama_cpp.llama_sampler_init_dry(
            model.vocab, p.dry_multiplier, p.dry_base, p.dry_allowed_length,
            last_n, array, len(breakers),
        )  # fmt: skip
        return prototype

    def close(self) -> None:
        with self._lock:
            while self._samplers:
                llama_cpp.llama_sampler_free(self._samplers.popitem()[1])


class Sampler:
    """Owns one ``llama_sampler`` chain. Not thread-safe; ``close`` frees it.

    :param prompt_tokens: seen by the repetition and DRY penalties. Presence and frequency
        penalties count the generated text only, as OpenAI documents.
    :raises InvalidRequest: a ``logit_bias`` id outside the vocabulary.
    """

    def __init__(
        self,
        model: LlamaModel,
        params: SamplingParams,
        *,
        n_ctx: int,
        prompt_tokens: Sequence[int],
        choice_index: int = 0,
        dry: DryPrototypes,
    ) -> None:
        self._dry = dry
        self._chain = 0
        self._n_samplers = 0
        biases = dict(params.logit_bias)
        for token in biases:
            if not 0 <= token < model.n_vocab:
                raise InvalidRequest(
                    f"logit_bias: {token} is not a token id of this model "
                    f"(0 to {model.n_vocab - 1})",
                    param="logit_bias",
                )
        if params.ignore_eos:
            biases.update(dict.fromkeys(model.eog_tokens, _NEGATIVE_INFINITY))
        chain_params = llama_cpp.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._chain = llama_cpp.llama_sampler_chain_init(chain_params)
        seed = resolve_seed(params.seed, choice_index)
        self._bias_tokens = np.fromiter(biases, np.int64, len(biases))
        self._bias_values = np.fromiter(biases.values(), np.float32, len(biases))
        self._add_penalties(model, params, n_ctx, prompt_tokens)
        # Whether the next token is simply the likeliest one, after ``add_biases``.
        self.is_argmax = params.temperature < _MIN_TEMPERATURE and not self._n_samplers
        if params.temperature < _MIN_TEMPERATURE:
            self._add(llama_cpp.llama_sampler_init_greedy())
        elif params.mirostat:
            self._add_mirostat(model, params, seed)
        else:
            self._add_truncation(params, seed)
            self._add(llama_cpp.llama_sampler_init_temp(params.temperature))
            self._add(llama_cpp.llama_sampler_init_dist(seed))

    def _add(self, sampler: int) -> None:
        llama_cpp.llama_sampler_chain_add(self._chain, sampler)
        self._n_samplers += 1

    def _add_penalties(
        self, model: LlamaModel, p: SamplingParams, n_ctx: int, prompt_tokens: Sequence[int]
    ) -> None:
        def primed(sampler: int, last_n: int) -> int:
            for token in prompt_tokens[-last_n:] if last_n else ():
                quick_calls.llama_sampler_accept(sampler, token)
            return sampler

        if p.repeat_penalty != 1.0 and p.repeat_last_n != 0:
            last_n = n_ctx if p.repeat_last_n < 0 else min(p.repeat_last_n, n_ctx)
            self._add(
                primed(
                    llama_cpp.llama_sampler_init_penalties(
                        model.n_vocab, last_n, p.repeat_penalty, 0.0, 0.0
                    ),
                    last_n,
                )
            )
        if p.frequency_penalty or p.presence_penalty:
            self._add(
                llama_cpp.llama_sampler_init_penalties(
                    model.n_vocab, n_ctx, 1.0, p.frequency_penalty, p.presence_penalty
                )
            )
        if p.dry_multiplier > 0 and p.dry_penalty_last_n != 0:
            last_n = n_ctx if p.dry_penalty_last_n < 0 else min(p.dry_penalty_last_n, n_ctx)
            self._add(primed(self._dry.sampler(model, p, last_n), last_n))

    def _add_dropping_impossible(self) -> None:
        """Typical-p and mirostat compute with the logarithms of all probabilities. That of a token
        that is ruled out (probability 0) makes NaN of them, and sorting NaN is undefined."""
        self._add(llama_cpp.llama_sampler_init_min_p(_IMPOSSIBLE, 1))

    def _add_truncation(self, p: SamplingParams, seed: int) -> None:
        if p.top_n_sigma > 0:
            self._add(llama_cpp.llama_sampler_init_top_n_sigma(p.top_n_sigma))
        if p.top_k > 0:
            self._add(llama_cpp.llama_sampler_init_top_k(p.top_k))
        if p.typical_p < 1:
            self._add_dropping_impossible()
            self._add(llama_cpp.llama_sampler_init_typical(p.typical_p, 1))
        if p.top_p < 1:
            self._add(llama_cpp.llama_sampler_init_top_p(p.top_p, 1))
        if p.min_p > 0:
            self._add(llama_cpp.llama_sampler_init_min_p(p.min_p, 1))
        if p.xtc_probability > 0:
            self._add(llama_cpp.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 1, seed))

    def _add_mirostat(self, model: LlamaModel, p: SamplingParams, seed: int) -> None:
        self._add_dropping_impossible()
        self._add(llama_cpp.llama_sampler_init_temp(p.temperature))
        if p.mirostat == 1:
            # 100: the number of tokens llama.cpp's own tools use to estimate s_hat.
            self._add(
                llama_cpp.llama_sampler_init_mirostat(
                    model.n_vocab, seed, p.mirostat_tau, p.mirostat_eta, 100
                )
            )
        else:
            self._add(
                llama_cpp.llama_sampler_init_mirostat_v2(seed, p.mirostat_tau, p.mirostat_eta)
            )

    def add_biases(self, logits: npt.NDArray[np.float32]) -> None:
        """Apply ``logit_bias`` and ``ignore_eos`` to one row of logits, in place; before all else.

        As a native sampler it would have the chain build its list of the whole vocabulary, which
        takes six times as long as finding the likeliest token.
        """
        if len(self._bias_tokens):
            logits[self._bias_tokens] += self._bias_values

    def sample(self, context_handle: int, batch_index: int) -> int:
        """Draw the next token from a batch entry's logits and remember it."""
        return int(llama_cpp.llama_sampler_sample(self._chain, context_handle, batch_index))

    def accept(self, token: int) -> None:
        """Remember a token that was not drawn."""
        quick_calls.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        if self._chain:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = 0
