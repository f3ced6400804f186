"""Log-probabilities of the model's unmodified distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ferrum_local.types import TokenLogprob, TopLogprob


def token_logprob(
    logits: npt.NDArray[np.float32], token: int, n_top: int, token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    """The log-softmax of one logits row at ``token``, and the ``n_top`` likeliest tokens.

    :param logits: shape (n_vocab,); not modified.
    """
    top_logit = float(logits.max())
    log_sum = top_logit + float(np.log(np.exp(logits - top_logit).sum(dtype=np.float64)))
    top: tuple[TopLogprob, ...] = ()
    if n_top:
        candidates = np.argpartition(logits, -n_top)[-n_top:]
        ordered = candidates[np.argsort(-logits[candidates], kind="stable")]
        top = tuple(
            TopLogprob(int(t), token_bytes(int(t)), float(logits[t]) - log_sum) for t in ordered
        )
    return TokenLogprob(token, token_bytes(token), float(logits[token]) - log_sum, top)
