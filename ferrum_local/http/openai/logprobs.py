"""Log-probabilities in OpenAI's two shapes: chat's list of entries, completions' four lists."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ferrum_local.http.openai.schemas import (
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
    CompletionLogprobs,
)
from ferrum_local.types import TokenLogprob

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON has not; OpenAI's number


def chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                token=_text(entry.bytes),
                bytes=list(entry.bytes),
                logprob=_finite(entry.logprob or 0.0),
                top_logprobs=[
                    ChatTopLogprob(
                        token=_text(top.bytes), bytes=list(top.bytes), logprob=_finite(top.logprob)
                    )
                    for top in entry.top
                ],
            )
            for entry in entries
        ]
    )


class LegacyLogprobs:
    """Writes the completions shape for one choice; offsets go on from call to call."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._n_chars = 0

    def prompt(self, entries: Sequence[TokenLogprob], text: str) -> CompletionLogprobs:
        """The entries of an echoed prompt, of which ``text`` is what is sent."""
        whole = b"".join(e.bytes for e in entries).decode("utf-8", "replace")
        # A beginning-of-text token has bytes but no place in the text that was sent.
        self._n_chars = -max(0, len(whole) - len(text))
        result = self.add(entries)
        self._decoder.reset()
        self._n_chars = len(text)
        return result

    def add(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        offsets = []
        for entry in entries:
            offsets.append(max(0, self._n_chars))
            self._n_chars += len(self._decoder.decode(entry.bytes))
        return CompletionLogprobs(
            tokens=[_escaped(e.bytes) for e in entries],
            token_logprobs=[None if e.logprob is None else _finite(e.logprob) for e in entries],
            top_logprobs=[_top(e) for e in entries],
            text_offset=offsets,
        )


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def prompt_text(entries: Sequence[TokenLogprob]) -> str:
    """The text of a prompt that came as token ids."""
    return b"".join(e.bytes for e in entries).decode("utf-8", "replace")


def mean_logprob(entries: Sequence[TokenLogprob]) -> float:
    """How likely a choice is per token; what ``best_of`` ranks by."""
    if not entries:
        return 0.0
    return sum(_finite(e.logprob or 0.0) for e in entries) / len(entries)


def _top(entry: TokenLogprob) -> dict[str, float] | None:
    """Alternatives by token, the chosen one always among them, as OpenAI documents."""
    if entry.logprob is None:
        return None
    top = {_escaped(t.bytes): _finite(t.logprob) for t in entry.top}
    top.setdefault(_escaped(entry.bytes), _finite(entry.logprob))
    return top


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _escaped(data: bytes) -> str:
    r"""Part of a character is written ``bytes:\xf0\x9f``, as OpenAI does in this shape."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in data)


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
