"""Tokens of an answer become chunks: content, reasoning and calls, and why it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum_local.llm.choice_reader import ChoiceReader
from ferrum_local.llm.dialects import detect
from ferrum_local.llm.text_assembler import TextAssembler
from ferrum_local.types import FinishReason, StreamChunk, TokenLogprob, ToolCall

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THOUGHT = "<think>\nParis, then.\n</think>\n\n"


class Answer:
    """Reads ``pieces`` as the tokens of one answer; every piece is a token of its own."""

    def __init__(
        self,
        pieces: list[str],
        end: FinishReason = FinishReason.STOP,
        *,
        stop: tuple[str, ...] = (),
        separate: bool = True,
        plain: bool = False,
        hidden: tuple[str, ...] = (),
    ) -> None:
        parser = detect("", renders_tools=False).parser(
            tools=TOOLS, tool_choice="auto", tool_name=None, reasoning=separate, prompt_tail=""
        )
        assembler = TextAssembler(lambda i: pieces[i].encode(), stop)
        marks = {i: piece for i, piece in enumerate(pieces) if piece in hidden}
        self.reader = ChoiceReader(0, assembler, None if plain else parser, marks)
        self.chunks: list[StreamChunk] = []
        for i, piece in enumerate(pieces):
            chunk = self.reader.push(i, TokenLogprob(i, piece.encode(), -0.5))
            self.chunks += [chunk] if chunk is not None else []
            if self.reader.finished:
                break
        else:
            self.chunks.append(self.reader.finish(end))

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def reasoning(self) -> str:
        return "".join(chunk.reasoning for chunk in self.chunks)

    @property
    def reason(self) -> FinishReason | None:
        return self.chunks[-1].finish_reason

    @property
    def calls(self) -> list[ToolCall]:
        deltas = [delta for chunk in self.chunks for delta in chunk.tool_calls]
        return [
            ToolCall(
                id=first.id or "",
                name=first.name or "",
                arguments="".join(d.arguments for d in deltas if d.index == first.index),
            )
            for first in deltas
            if first.name is not None
        ]

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self) -> list[int]:
        return [entry.token_id for chunk in self.chunks for entry in chunk.logprobs]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False) if a < b]


@given(st.lists(st.integers(0, 500)))
def test_however_an_answer_is_cut_into_tokens_its_parts_are_the_same(cuts: list[int]) -> None:
    answer = Answer(pieces_of(f"{THOUGHT}Let me look.\n{CALL}\n{CALL}", cuts))
    assert answer.reasoning == "Paris, then."
    assert answer.text == "Let me look."
    first, second = answer.calls
    assert (first.name, json.loads(first.arguments)) == ("weather", {"city": "Paris"})
    assert first.id != second.id
    assert answer.reason is FinishReason.TOOL_CALLS
    assert answer.token_ids == list(range(answer.reader.n_tokens))


def test_tool_05_an_answer_that_ends_with_a_call_says_so() -> None:
    assert Answer([CALL]).reason is FinishReason.TOOL_CALLS
    assert Answer(list(CALL)).reason is FinishReason.TOOL_CALLS
    assert Answer(["Hello"]).reason is FinishReason.STOP


def test_tool_07_a_call_cut_by_the_limit_is_length() -> None:
    answer = Answer([CALL[:50]], FinishReason.LENGTH)
    assert answer.reason is FinishReason.LENGTH
    assert answer.calls[0].name == "weather"
    assert Answer([CALL], FinishReason.LENGTH).reason is FinishReason.LENGTH


def test_a_call_that_breaks_off_is_no_reason_to_call() -> None:
    answer = Answer([CALL], stop=('"Par',))
    assert answer.calls
    assert answer.reason is FinishReason.STOP
    assert Answer([CALL, "END"], stop=("END",)).reason is FinishReason.TOOL_CALLS


def test_arguments_come_as_they_grow() -> None:
    fragments = [d.arguments for c in Answer(list(CALL)).chunks for d in c.tool_calls]
    assert len(fragments) > 5
    assert json.loads("".join(fragments)) == {"city": "Paris"}


def test_chat_23_reasoning_is_told_apart_or_left_as_it_was() -> None:
    apart = Answer([THOUGHT, "Paris."])
    assert (apart.reasoning, apart.text) == ("Paris, then.", "Paris.")
    left = Answer([THOUGHT, "Paris."], separate=False)
    assert (left.reasoning, left.text) == ("", f"{THOUGHT}Paris.")


@pytest.mark.parametrize("separate", [True, False])
def test_tokens_of_reasoning_are_counted(separate: bool) -> None:
    pieces = ["<think>", "a", " b", "</think>", "\n\n", "Paris", "."]
    answer = Answer(pieces, separate=separate)
    assert answer.reader.n_reasoning_tokens == 4
    assert answer.reader.n_tokens == 7


def test_logprobs_are_of_content_alone() -> None:
    pieces = ["<think>", "a", "</think>", "Let", " me", "\n", *CALL.splitlines(keepends=True)]
    assert Answer(pieces).logprobs == [3, 4]
    assert Answer(["<tool", "_", "box>"]).logprobs == [0, 1, 2]
    assert Answer(pieces, plain=True).logprobs == list(range(len(pieces)))


def test_control_tokens_that_mean_nothing_here_are_not_shown() -> None:
    hidden = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    answer = Answer(["Hi", "</think>", " you", "<tool_call>", "!", "</tool_call>"], hidden=hidden)
    assert answer.text == "Hi you!"
    assert answer.reason is FinishReason.STOP
    of_use = Answer(
        ["<think>", "a", "</think>", "b", "<tool_call>", CALL[11:-12], "</tool_call>"],
        hidden=hidden,
    )
    assert (of_use.reasoning, of_use.text) == ("a", "b")
    assert [call.name for call in of_use.calls] == ["weather"]
    # The same characters from ordinary tokens are what the model says.
    assert Answer(["Write ", "</", "think>", "."], hidden=hidden).text == "Write </think>."


def test_without_a_parser_all_is_content() -> None:
    answer = Answer([THOUGHT, CALL], plain=True)
    assert answer.text == THOUGHT + CALL
    assert answer.reason is FinishReason.STOP
    assert answer.reader.n_reasoning_tokens == 0
