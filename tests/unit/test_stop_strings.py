"""Stop strings found piece by piece against the answer of a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum_local.llm.stop_strings import StopMatcher, StopResult

# So few characters that stop strings overlap, nest and nearly match all the time.
ALPHABET = "ab\n?"
STOPS = st.lists(st.text(ALPHABET, max_size=6), max_size=4)
PIECES = st.lists(st.text(ALPHABET, max_size=5), max_size=20)
# Text made of the stops themselves, so that long ones are met as well.
STOPS_AND_PIECES = st.one_of(
    st.tuples(STOPS, PIECES),
    STOPS.filter(any).flatmap(
        lambda stops: st.tuples(
            st.just(stops),
            st.lists(st.sampled_from([*stops, *(s[:-1] for s in stops), "a"]), max_size=12),
        )
    ),
)


def whole_text_answer(text: str, stops: list[str]) -> StopResult:
    places = [text.find(stop) for stop in stops if stop and stop in text]
    return StopResult(text[: min(places)], True) if places else StopResult(text, False)


def run(stops: list[str], pieces: list[str]) -> StopResult:
    matcher = StopMatcher(stops)
    results = [matcher.push(piece) for piece in pieces]
    results.append(matcher.flush())
    return StopResult("".join(r.text for r in results), results[-1].stopped)


@settings(deadline=None, max_examples=500)
@given(STOPS_AND_PIECES)
def test_str_10_pieces_give_the_answer_of_the_whole_text(
    case: tuple[list[str], list[str]],
) -> None:
    stops, pieces = case
    assert run(stops, pieces) == whole_text_answer("".join(pieces), stops)
    assert run(stops, list("".join(pieces))) == whole_text_answer("".join(pieces), stops)


@settings(deadline=None, max_examples=300)
@given(STOPS_AND_PIECES)
def test_str_10_only_a_possible_stop_string_is_held(case: tuple[list[str], list[str]]) -> None:
    stops, pieces = case
    matcher = StopMatcher(stops)
    seen = released = ""
    for piece in pieces:
        result = matcher.push(piece)
        seen += piece
        released += result.text
        assert not any(stop in released for stop in stops if stop)
        if result.stopped:
            assert matcher.push("more") == StopResult("", True)
            assert matcher.flush() == StopResult("", True)
            return
        held = seen[len(released) :]
        assert released + held == seen
        assert not held or any(s.startswith(held) and s != held for s in stops)


def test_str_10_a_stop_string_over_several_pieces_never_leaks() -> None:
    matcher = StopMatcher(["?\n"])
    assert matcher.push("Why") == StopResult("Why", False)
    assert matcher.push(" not?") == StopResult(" not", False)
    assert matcher.push("\nBecause") == StopResult("", True)
    assert matcher.push(" …") == StopResult("", True)


def test_str_10_a_near_miss_is_released_in_full() -> None:
    matcher = StopMatcher(["?\n"])
    assert matcher.push("Why?") == StopResult("Why", False)
    assert matcher.push(" I ask.") == StopResult("? I ask.", False)


def test_str_10_what_is_held_at_the_end_is_released() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == StopResult("the ", False)
    assert matcher.flush() == StopResult("EN", False)


def test_a_stop_inside_a_longer_one_waits_for_the_longer_one() -> None:
    stops = ["im_end", "<|im_end|>"]
    matcher = StopMatcher(stops)
    assert matcher.push("Hi<|im_end") == StopResult("Hi", False)
    assert matcher.push("|>") == StopResult("", True)

    matcher = StopMatcher(stops)
    matcher.push("Hi<|im_end")
    assert matcher.push("ing") == StopResult("<|", True)

    matcher = StopMatcher(stops)
    matcher.push("Hi<|im_end")
    assert matcher.flush() == StopResult("<|", True)


@pytest.mark.parametrize("stops", [[], [""], ["", ""]])
def test_empty_stop_strings_are_ignored(stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert matcher.push("text") == StopResult("text", False)
    assert matcher.flush() == StopResult("", False)


def test_a_long_stop_string_that_keeps_nearly_matching_is_found() -> None:
    stop = "a" * 5000 + "b"
    assert run([stop], ["x" + "a" * 3] + ["aa"] * 4000 + ["b", "c"]) == StopResult(
        "x" + "a" * (3 + 8000 - 5000), True
    )
