"""The prefix tree against a brute-force twin: a dict of slot to list."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrum_local.llm.prefix_tree import Match, PrefixTree, PrefixTreeError

# Few slots and fewer tokens, so that sequences share, part and meet again all the time.
SLOTS = st.integers(0, 5)
TOKENS = st.integers(0, 2)
SEQUENCES = st.lists(TOKENS, max_size=8)


def n_common(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class TreeAgainstTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.twin: dict[int, list[int]] = {}

    def held(self, slot: int) -> list[int]:
        return self.twin.get(slot, [])

    @rule(slot=SLOTS, tokens=SEQUENCES)
    def insert(self, slot: int, tokens: list[int]) -> None:
        if self.held(slot):
            with pytest.raises(ValueError, match=f"slot {slot} already holds"):
                self.tree.insert(slot, tokens)
        else:
            self.tree.insert(slot, tuple(tokens))
            self.twin[slot] = list(tokens)

    @precondition(lambda self: any(self.twin.values()))
    @rule(slot=SLOTS, rest=SEQUENCES, data=st.data())
    def insert_what_begins_like_another(
        self, slot: int, rest: list[int], data: st.DataObject
    ) -> None:
        other = data.draw(st.sampled_from(sorted(s for s in self.twin if self.twin[s])))
        n_tokens = data.draw(st.integers(1, len(self.twin[other])))
        if not self.held(slot):
            self.twin[slot] = self.twin[other][:n_tokens] + rest
            self.tree.insert(slot, self.twin[slot])

    @rule(slot=SLOTS, token=TOKENS)
    def extend(self, slot: int, token: int) -> None:
        self.tree.extend(slot, token)
        self.twin[slot] = [*self.held(slot), token]

    @rule(slot=SLOTS, tokens=SEQUENCES)
    def extend_many(self, slot: int, tokens: list[int]) -> None:
        self.tree.extend_many(slot, tokens)
        self.twin[slot] = self.held(slot) + tokens
        tokens.append(99)  # the caller's list stays the caller's

    @rule(slot=SLOTS, data=st.data())
    def truncate(self, slot: int, data: st.DataObject) -> None:
        n_tokens = data.draw(st.integers(0, len(self.held(slot))))
        self.tree.truncate(slot, n_tokens)
        self.twin[slot] = self.held(slot)[:n_tokens]

    @rule(slot=SLOTS)
    def remove(self, slot: int) -> None:
        self.tree.remove(slot)
        self.twin.pop(slot, None)

    @rule(tokens=SEQUENCES)
    def look_up(self, tokens: list[int]) -> None:
        shared = {slot: n_common(held, tokens) for slot, held in self.twin.items()}
        longest = max(shared.values(), default=0)
        holders = frozenset(s for s, n in shared.items() if n == longest) if longest else set()
        assert self.tree.longest_prefix(tokens) == Match(longest, frozenset(holders))
        assert self.tree.longest_prefix(tuple(tokens)).n_tokens == longest
        for slot in range(6):
            assert self.tree.shared_length(slot, tokens) == shared.get(slot, 0)
        whole = {s: n for s, n in shared.items() if n == len(self.twin[s]) and n}
        longest = max(whole.values(), default=0)
        holders = frozenset(s for s, n in whole.items() if n == longest)
        assert self.tree.longest_whole(tokens) == Match(longest, holders)

    @invariant()
    def each_slot_holds_what_its_twin_holds(self) -> None:
        self.tree.check()
        for slot in range(6):
            assert self.tree.tokens(slot) == self.held(slot)
            assert self.tree.length(slot) == len(self.held(slot))

    @invariant()
    def each_slot_finds_itself(self) -> None:
        for slot, held in self.twin.items():
            match = self.tree.longest_prefix(held)
            assert match.n_tokens == len(held)
            assert not held or slot in match.slots


TestTreeAgainstTwin = TreeAgainstTwin.TestCase
TestTreeAgainstTwin.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)


@settings(deadline=None)
@given(n_shared=st.integers(0, 1100), n_rest=st.integers(0, 300), other=st.integers(5, 6))
def test_long_prompts_match_up_to_the_token_where_they_part(
    n_shared: int, n_rest: int, other: int
) -> None:
    tree = PrefixTree()
    shared = [token % 7 for token in range(n_shared)]
    tree.insert(0, [*shared, 5, *range(n_rest)])
    wanted = [*shared, other, *range(n_rest)]
    expected = len(wanted) if other == 5 else n_shared
    assert tree.longest_prefix(wanted).n_tokens == expected
    assert tree.shared_length(0, wanted) == expected
    tree.insert(1, wanted)
    tree.check()
    assert tree.tokens(1) == wanted


def test_a_prompt_finds_every_slot_that_has_its_prefix() -> None:
    tree = PrefixTree()
    tree.insert(0, [1, 2, 3, 4])
    tree.insert(1, [1, 2, 3, 9])
    tree.insert(2, [1, 2])
    assert tree.longest_prefix([1, 2, 3, 7]) == Match(3, frozenset({0, 1}))
    assert tree.longest_prefix([1, 2]) == Match(2, frozenset({0, 1, 2}))
    assert tree.longest_prefix([8]) == Match(0, frozenset())
    assert tree.shared_length(2, [1, 2, 3, 4]) == 2


def test_two_answers_that_run_alike_and_then_part_share_the_common_run() -> None:
    tree = PrefixTree()
    tree.insert(0, [1, 2])
    tree.insert(1, [1, 2])
    for token in (3, 4, 5):
        tree.extend(0, token)
        tree.extend(1, token)
    tree.extend(0, 6)
    tree.extend(1, 7)
    tree.check()
    assert tree.longest_prefix([1, 2, 3, 4, 5, 7]) == Match(6, frozenset({1}))
    assert tree.longest_prefix([1, 2, 3, 4, 5]) == Match(5, frozenset({0, 1}))


def test_a_branch_that_is_left_alone_joins_its_trunk_with_all_that_hangs_from_it() -> None:
    tree = PrefixTree()
    tree.insert(0, [1, 2, 3, 4])
    tree.insert(1, [1, 2, 3, 5])
    tree.insert(2, [1, 9])
    tree.remove(2)
    tree.check()
    assert tree.tokens(0) == [1, 2, 3, 4]
    assert tree.longest_prefix([1, 2, 3, 5]) == Match(4, frozenset({1}))


def test_an_empty_slot_is_no_error() -> None:
    tree = PrefixTree()
    tree.remove(3)
    tree.truncate(3, 0)
    tree.insert(3, [])
    assert tree.tokens(3) == []
    assert tree.longest_prefix([]) == Match(0, frozenset())


@pytest.mark.parametrize("n_tokens", [-1, 3])
def test_a_slot_cannot_be_cut_to_what_it_does_not_hold(n_tokens: int) -> None:
    tree = PrefixTree()
    tree.insert(0, [1, 2])
    with pytest.raises(ValueError, match=f"cannot keep {n_tokens} of the 2 tokens of slot 0"):
        tree.truncate(0, n_tokens)
    assert tree.tokens(0) == [1, 2]


def lose_a_slot(tree: PrefixTree) -> None:
    del tree._tips[0]


def claim_too_much(tree: PrefixTree) -> None:
    tree._lengths[0] += 1


def hold_too_little(tree: PrefixTree) -> None:
    tree._tips[0].edge.append(9)


def forget_who_passes(tree: PrefixTree) -> None:
    tree._root.children[1].slots.discard(0)


def leave_an_only_child(tree: PrefixTree) -> None:
    branch = tree._root.children[1]
    del tree._tips[1], tree._lengths[1], branch.children[8]
    branch.slots.discard(1)


def shift_the_children(tree: PrefixTree) -> None:
    tree._root.children[1].edge.append(2)


def cut_off_a_branch(tree: PrefixTree) -> None:
    del tree._root.children[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_slot, "different slots"),
        (claim_too_much, "slot 0 holds 4 tokens"),
        (hold_too_little, "ends at 4, but slots at 3"),
        (forget_who_passes, "pass"),
        (leave_an_only_child, "only child"),
        (shift_the_children, "its parent ends at 3"),
        (cut_off_a_branch, "0 nodes in the tree"),
    ],
)
def test_check_says_what_is_broken(damage: Callable[[PrefixTree], None], message: str) -> None:
    tree = PrefixTree()
    tree.insert(0, [1, 2, 3])
    tree.insert(1, [1, 2, 8])
    tree.check()
    damage(tree)
    with pytest.raises(PrefixTreeError, match=message):
        tree.check()
