"""Placement of sequences on slots, without a model."""

from __future__ import annotations

from ferrum_local.llm.slot_cache import SlotCache

SYSTEM = list(range(100))


def fill(cache: SlotCache, tokens: list[int]) -> int:
    """Run a sequence to its end; returns its slot, now idle and cached."""
    placement = cache.place(tokens)
    assert placement is not None
    cache.append(placement.slot, tokens[placement.n_reused :])
    cache.release(placement.slot)
    return placement.slot


def test_the_next_turn_of_a_chat_continues_its_slot() -> None:
    cache = SlotCache(4)
    first = fill(cache, SYSTEM + [200, 201])
    fill(cache, SYSTEM + [300])
    placement = cache.place([*SYSTEM, 200, 201, 202, 203])
    assert placement == (first, 102, None, [])


def test_a_shared_prefix_is_copied_and_the_other_conversation_kept() -> None:
    cache = SlotCache(2)
    first = fill(cache, SYSTEM + [200, 201])
    placement = cache.place([*SYSTEM, 300, 301])
    assert placement is not None
    assert (placement.n_reused, placement.copy_from) == (100, first)
    assert placement.slot != first
    assert cache.length(first) == 102


def test_the_source_itself_is_cut_when_no_other_slot_is_free() -> None:
    cache = SlotCache(2)
    cache.place([1, 2, 3])  # stays busy
    first = fill(cache, SYSTEM + [200])
    placement = cache.place([*SYSTEM, 300])
    assert placement == (first, 100, None, [*SYSTEM, 200])


def test_a_busy_slot_lends_its_prefix() -> None:
    cache = SlotCache(2)
    busy = cache.place([*SYSTEM, 1])
    assert busy is not None
    cache.append(busy.slot, [*SYSTEM, 1])
    placement = cache.place([*SYSTEM, 2])
    assert placement is not None
    assert (placement.n_reused, placement.copy_from) == (100, busy.slot)


def test_one_token_is_always_left_to_evaluate() -> None:
    cache = SlotCache(2)
    fill(cache, SYSTEM)
    placement = cache.place(SYSTEM)
    assert placement is not None
    assert placement.n_reused == len(SYSTEM) - 1


def test_the_least_recently_used_slot_is_evicted() -> None:
    cache = SlotCache(3)
    slots = [fill(cache, [10 * i + j for j in range(5)]) for i in range(1, 4)]
    fill(cache, [10, 11, 12, 13, 14, 15])  # the first one is used again
    placement = cache.place([90, 91])
    assert placement is not None
    assert placement.slot == slots[1]


def test_busy_slots_are_never_given_away() -> None:
    cache = SlotCache(2)
    taken = [cache.place([1, 2]), cache.place([3, 4])]
    assert len({p.slot for p in taken if p}) == 2
    assert cache.place([5]) is None
    assert cache.n_free == 0


def test_a_few_shared_tokens_are_not_worth_a_copy() -> None:
    cache = SlotCache(2)
    fill(cache, [1, 2, 3, 4, 5])
    placement = cache.place([1, 2, 3, 9])
    assert placement is not None
    assert placement.copy_from is None


def test_a_conversation_is_not_given_up_for_a_first_token_that_all_share() -> None:
    cache = SlotCache(3)
    held = fill(cache, [0, *range(10, 60)])
    placement = cache.place([0, *range(70, 90)])
    assert placement is not None
    assert placement.slot != held
    assert placement.n_reused == 0
    assert cache.length(held) == 51


def test_the_same_short_question_again_is_cut_back_and_answered_anew() -> None:
    cache = SlotCache(3)
    held = fill(cache, [0, 1, 2, 3, 4, *range(100, 120)])
    placement = cache.place([0, 1, 2, 3, 4])
    assert placement is not None
    assert (placement.slot, placement.n_reused) == (held, 4)


def test_what_is_copied_from_counts_as_used() -> None:
    cache = SlotCache(3)
    first, second = fill(cache, SYSTEM), fill(cache, [200, 201])
    cache.place([*SYSTEM[:50], 7])  # into the third slot
    placement = cache.place([300])
    assert placement is not None
    assert placement.slot == second
    assert cache.length(first) == 100


def test_memory_that_cannot_be_cut_is_reused_whole_or_not_at_all() -> None:
    cache = SlotCache(2, can_cut=False)
    first = fill(cache, SYSTEM)
    assert cache.reusable([*SYSTEM, 7]) == 100
    assert cache.reusable([*SYSTEM[:50], 7, 8]) == 0
    assert cache.place([*SYSTEM, 7]) == (first, 100, None, [])


def test_memory_that_cannot_be_cut_is_reused_where_a_longer_slot_shares_more() -> None:
    cache = SlotCache(3, can_cut=False)
    fill(cache, [*SYSTEM, 7, 8, 9])
    whole = fill(cache, SYSTEM)
    prompt = [*SYSTEM, 7, 8, 100]
    assert cache.reusable(prompt) == 100
    assert cache.kept_elsewhere(prompt) == 100
    assert cache.place(prompt) == (whole, 100, None, [])


def test_prompt_scoring_reuses_nothing() -> None:
    cache = SlotCache(2)
    fill(cache, SYSTEM)
    placement = cache.place([*SYSTEM, 1], reuse=False)
    assert placement is not None
    assert placement.n_reused == 0
    assert cache.length(placement.slot) == 0
