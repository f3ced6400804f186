"""The tokens of one choice → the chunks that its reader gets: content, reasoning and calls.

Stop strings match everything that the model writes; only what is left is told apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ferrum_local.llm.dialects.interface import OutputParser, ParsedDelta
from ferrum_local.llm.text_assembler import AssembledText, TextAssembler
from ferrum_local.types import FinishReason, StreamChunk, TokenLogprob, ToolCallDelta


class ChoiceReader:
    """What one sequence has produced so far.

    Log-probabilities are kept for tokens of the content alone, as OpenAI's field of that name.

    :param parser: tells the parts of an answer apart; None: all of it is content.
    :param hidden: control tokens that are text only for the parser to see. Where it has no use
        for one, nobody else is shown it.
    """

    def __init__(
        self,
        index: int,
        assembler: TextAssembler,
        parser: OutputParser | None,
        hidden: Mapping[int, str] = {},
    ) -> None:
        self.n_tokens = 0
        self.n_reasoning_tokens = 0  # marks of the block included
        self.finished = False
        self._index = index
        self._assembler = assembler
        self._parser = parser
        self._hidden = hidden
        self._unused: list[str] = []  # hidden texts that the parser may have had no use for
        self._unassembled: list[tuple[int, TokenLogprob | None]] = []
        # Of tokens whose text went to the parser, and which no chunk had yet:
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._last_arguments: list[str] = []

    def push(self, token: int, logprob: TokenLogprob | None) -> StreamChunk | None:
        """Take the next token. A chunk with a finish reason: a stop string was found."""
        self.n_tokens += 1
        self._unassembled.append((token, logprob))
        if token in self._hidden:
            self._unused.append(self._hidden[token])
        was_thinking = self._is_thinking
        assembled = self._assembler.push(token)
        delta = self._parse(assembled)
        if was_thinking or self._is_thinking:
            self.n_reasoning_tokens += 1
        if assembled.stopped:
            return self._finish(delta, FinishReason.STOP)
        if not any(delta):
            return None
        return self._chunk(delta, None)

    def finish(self, reason: FinishReason) -> StreamChunk:
        """Release what was held back: the sequence ended with ``reason``."""
        assembled = self._assembler.finish()
        # A longer stop string that was still possible may have hidden one that is complete.
        return self._finish(
            self._parse(assembled), FinishReason.STOP if assembled.stopped else reason
        )

    @property
    def _is_thinking(self) -> bool:
        return self._parser is not None and self._parser.in_reasoning

    def _parse(self, assembled: AssembledText) -> ParsedDelta:
        done = self._unassembled[: assembled.n_tokens]
        del self._unassembled[: assembled.n_tokens]
        self._token_ids.extend(token for token, _ in done)
        self._logprobs.extend(logprob for _, logprob in done if logprob is not None)
        if self._parser is None:
            return ParsedDelta(assembled.text)
        if not assembled.text:
            return ParsedDelta()
        was_thinking = self._is_thinking
        delta = self._parser.push(assembled.text)
        if delta.tool_calls or was_thinking != self._is_thinking:
            self._unused.clear()
        delta = delta._replace(content=self._shown(delta.content))
        self._note_calls(delta.tool_calls)
        if not delta.content and (was_thinking or self._is_thinking or any(delta)):
            self._logprobs.clear()  # these tokens are reasoning or a call
        return delta

    def _shown(self, content: str) -> str:
        for text in tuple(self._unused):
            if text in content:
                content = content.replace(text, "", 1)
                self._unused.remove(text)
        return content

    def _note_calls(self, deltas: Sequence[ToolCallDelta]) -> None:
        for delta in deltas:
            if delta.name is not None:
                self._last_arguments.clear()
            self._last_arguments.append(delta.arguments)

    def _finish(self, delta: ParsedDelta, reason: FinishReason) -> StreamChunk:
        self.finished = True
        if self._parser is not None:
            last = self._parser.finish()
            self._note_calls(last.tool_calls)
            delta = ParsedDelta(
                delta.content + self._shown(last.content),
                delta.reasoning + last.reasoning,
                delta.tool_calls + last.tool_calls,
            )
            if not delta.content and (self._is_thinking or self._parser.n_tool_calls):
                self._logprobs.clear()
            if reason is FinishReason.STOP and self._ends_with_call():
                reason = FinishReason.TOOL_CALLS
        return self._chunk(delta, reason)

    def _ends_with_call(self) -> bool:
        """There are calls, and none that a stop string or the model itself broke off."""
        if self._parser is None or not self._parser.n_tool_calls:
            return False
        try:
            json.loads("".join(self._last_arguments))
        except ValueError:
            return False
        return True

    def _chunk(self, delta: ParsedDelta, reason: FinishReason | None) -> StreamChunk:
        has_logprobs = bool(delta.content) or reason is not None
        chunk = StreamChunk(
            index=self._index,
            text=delta.content,
            reasoning=delta.reasoning,
            tool_calls=delta.tool_calls,
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs) if has_logprobs else (),
            finish_reason=reason,
        )
        self._token_ids.clear()
        if has_logprobs:
            self._logprobs.clear()
        return chunk
