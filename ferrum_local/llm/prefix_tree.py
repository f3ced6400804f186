"""Radix tree from token ids to the slots that hold them: who already has this prefix?

Pure bookkeeping. Slots are small ints; nothing here knows of the KV cache itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_BLOCK = 256  # tokens compared at once; slices compare in C, single tokens do not


class Match(NamedTuple):
    """The longest held prefix: its length, and every slot that holds all of it.

    ``slots`` is empty when nothing is shared.
    """

    n_tokens: int
    slots: frozenset[int]


class PrefixTreeError(AssertionError):
    """The tree broke one of its own rules: a bug in this module."""


class PrefixTree:
    """What each slot holds, stored once for all slots that hold the same.

    A slot that holds nothing is not known to the tree and is not an error anywhere.
    A node splits where slots part and only there: slots that hold different lengths of
    the same tokens stay in one node, told apart by their lengths. So a node has two or
    more children or none, and a tree of n slots has fewer than 2 n nodes.
    """

    def __init__(self) -> None:
        self._root = _Node(None, 0, [])
        self._tips: dict[int, _Node] = {}  # slot -> the node with its last token
        self._lengths: dict[int, int] = {}  # slot -> how many tokens it holds, > 0

    def insert(self, slot: int, tokens: Sequence[int]) -> None:
        """Let an empty slot hold exactly ``tokens``.

        :raises ValueError: when the slot holds something already.
        """
        if slot in self._tips:
            raise ValueError(f"slot {slot} already holds {self._lengths[slot]} tokens")
        self.extend_many(slot, tokens)

    def extend(self, slot: int, token: int) -> None:
        """Append one token in constant time (parting from another slot: its tail is moved)."""
        node = self._tips.get(slot)
        if node is None:
            self._descend(slot, self._root, 0, [token])
            return
        length = self._lengths[slot]
        edge = node.edge
        offset = length - node.start
        if offset < len(edge):
            if edge[offset] != token:  # within another slot's tokens, and parting from them
                self._descend(slot, node, offset, [token])
                return
        elif node.children:
            self._descend(slot, node, offset, [token])
            return
        else:
            edge.append(token)
        self._lengths[slot] = length + 1

    def extend_many(self, slot: int, tokens: Sequence[int]) -> None:
        """Append ``tokens`` to what the slot holds."""
        if not len(tokens):
            return
        node = self._tips.get(slot, self._root)
        offset = self._lengths.get(slot, 0) - node.start
        self._descend(slot, node, offset, _as_list(tokens))

    def truncate(self, slot: int, n_tokens: int) -> None:
        """Keep the slot's first ``n_tokens``.

        :raises ValueError: when it holds fewer, or for a negative number.
        """
        length = self._lengths.get(slot, 0)
        if not 0 <= n_tokens <= length:
            raise ValueError(f"cannot keep {n_tokens} of the {length} tokens of slot {slot}")
        if n_tokens == length:
            return
        tip = node = self._tips[slot]
        while node.start >= n_tokens and node.parent is not None:
            node.slots.discard(slot)
            node = node.parent
        if n_tokens:
            self._tips[slot] = node
            self._lengths[slot] = n_tokens
        else:
            del self._tips[slot], self._lengths[slot]
        # Only the tip can have been this slot's alone: where it branches off, others pass.
        if not tip.slots:
            self._detach(tip)
        elif not tip.children:
            longest = max(self._lengths[other] for other in tip.slots)
            del tip.edge[longest - tip.start :]

    def remove(self, slot: int) -> None:
        """Forget all that the slot holds."""
        self.truncate(slot, 0)

    def tokens(self, slot: int) -> list[int]:
        """What the slot holds, as a new list."""
        node = self._tips.get(slot)
        if node is None:
            return []
        edges = [node.edge[: self._lengths[slot] - node.start]]
        while node.parent is not None:
            node = node.parent
            edges.append(node.edge)
        return [token for edge in reversed(edges) for token in edge]

    def length(self, slot: int) -> int:
        """How many tokens the slot holds."""
        return self._lengths.get(slot, 0)

    def longest_prefix(self, tokens: Sequence[int]) -> Match:
        """The longest prefix of ``tokens`` that any slot holds, and who holds it."""
        node, n_tokens = self._follow(tokens)
        lengths = self._lengths
        return Match(n_tokens, frozenset(s for s in node.slots if lengths[s] >= n_tokens))

    def longest_whole(self, tokens: Sequence[int]) -> Match:
        """The longest prefix of ``tokens`` that is all that some slot holds."""
        node, n_tokens = self._follow(tokens)
        above: _Node | None = node
        while above is not None:
            lengths = {
                slot: self._lengths[slot]
                for slot in above.slots
                if self._tips[slot] is above and self._lengths[slot] <= n_tokens
            }
            if lengths:
                longest = max(lengths.values())
                return Match(longest, frozenset(s for s, n in lengths.items() if n == longest))
            above = above.parent
        return Match(0, frozenset())

    def shared_length(self, slot: int, tokens: Sequence[int]) -> int:
        """How many leading ``tokens`` this slot holds."""
        _, n_tokens = self._follow(tokens, only=slot)
        return min(n_tokens, self.length(slot))

    def check(self) -> None:
        """Verify every rule of the structure; for tests and idle moments.

        :raises PrefixTreeError: with what is wrong and where.
        """
        if self._tips.keys() != self._lengths.keys():
            raise PrefixTreeError("tips and lengths know different slots")
        passing: dict[int, set[int]] = {}  # id(node) -> slots, as the tips have it
        for slot, tip in self._tips.items():
            if not tip.start < self._lengths[slot] <= tip.end:
                raise PrefixTreeError(
                    f"slot {slot} holds {self._lengths[slot]} tokens, "
                    f"but its last node has {tip.start} to {tip.end}"
                )
            node = tip
            while node.parent is not None:
                passing.setdefault(id(node), set()).add(slot)
                node = node.parent
            if node is not self._root:
                raise PrefixTreeError(f"slot {slot} hangs from a node that is not in the tree")
        if self._root.edge or self._root.slots or self._root.start:
            raise PrefixTreeError("the root is not empty")
        pending = list(self._root.children.items())
        n_nodes = 0
        while pending:
            token, node = pending.pop()
            n_nodes += 1
            self._check_node(token, node, passing.get(id(node), set()))
            pending.extend(node.children.items())
        if n_nodes != len(passing):
            raise PrefixTreeError(f"{n_nodes} nodes in the tree, but slots pass {len(passing)}")

    def _check_node(self, token: int, node: _Node, passing: set[int]) -> None:
        where = f"node at {node.start}, first token {token}"
        parent = node.parent
        if parent is None or parent.children.get(token) is not node:
            raise PrefixTreeError(f"{where}: not its parent's child")
        if node.start != parent.end:
            raise PrefixTreeError(f"{where}: its parent ends at {parent.end}")
        if not node.edge or node.edge[0] != token:
            raise PrefixTreeError(f"{where}: its tokens begin otherwise")
        if node.slots != passing or not passing:
            raise PrefixTreeError(f"{where}: slots {node.slots}, but {passing} pass")
        if len(node.children) == 1:
            raise PrefixTreeError(f"{where}: an only child that should be part of it")
        longest = max(self._lengths[slot] for slot in passing)
        if not node.children and node.end != longest:
            raise PrefixTreeError(f"{where}: ends at {node.end}, but slots at {longest}")

    def _follow(self, tokens: Sequence[int], only: int | None = None) -> tuple[_Node, int]:
        """Go down along ``tokens``, through nodes of slot ``only`` if one is named.

        Returns the last node entered and how many tokens lead there.
        """
        wanted = _as_list(tokens)
        node, n_tokens = self._root, 0
        while n_tokens == node.end and n_tokens < len(wanted):
            child = node.children.get(wanted[n_tokens])
            if child is None or (only is not None and only not in child.slots):
                break
            node = child
            n_tokens += _common_length(node.edge, 0, wanted, n_tokens)
        return node, n_tokens

    def _descend(self, slot: int, node: _Node, offset: int, tokens: list[int]) -> None:
        """Append ``tokens`` (one or more) to a slot that ends ``offset`` into ``node``."""
        length = node.start + offset + len(tokens)
        i = 0
        while i < len(tokens):
            if offset < len(node.edge):
                n_common = _common_length(node.edge, offset, tokens, i)
                i += n_common
                offset += n_common
                if i < len(tokens) and offset < len(node.edge):
                    self._split(node, offset, staying=slot)
            elif not node.children and node.parent is not None:
                node.edge.extend(tokens[i:])
                break
            else:
                child = node.children.get(tokens[i])
                if child is None:
                    child = _Node(node, node.end, tokens[i:])
                    node.children[tokens[i]] = child
                    i = len(tokens)
                child.slots.add(slot)
                node, offset = child, 0
        self._tips[slot] = node
        self._lengths[slot] = length

    def _split(self, node: _Node, offset: int, *, staying: int) -> None:
        """Move what follows ``offset`` into a child; ``staying`` does not go with it.

        (It is about to leave the node here, and its own length may not be known yet.)
        """
        tail = _Node(node, node.start + offset, node.edge[offset:])
        del node.edge[offset:]
        tail.children = node.children
        for child in tail.children.values():
            child.parent = tail
        node.children = {tail.edge[0]: tail}
        for slot in node.slots:
            if slot != staying and self._lengths[slot] > tail.start:
                tail.slots.add(slot)
                if self._tips[slot] is node:
                    self._tips[slot] = tail

    def _detach(self, leaf: _Node) -> None:
        """Take out a leaf that no slot enters; a sibling left alone joins their parent."""
        node = leaf.parent
        if node is None:
            raise PrefixTreeError("the root cannot be taken out")
        del node.children[leaf.edge[0]]
        if len(node.children) != 1 or node.parent is None:
            return
        (child,) = node.children.values()
        node.edge.extend(child.edge)
        node.children = child.children
        for grandchild in node.children.values():
            grandchild.parent = node
        for slot in child.slots:
            if self._tips[slot] is child:
                self._tips[slot] = node


class _Node:
    """A run of tokens (``edge``) from depth ``start`` on, and the slots that enter it."""

    __slots__ = ("children", "edge", "parent", "slots", "start")

    def __init__(self, parent: _Node | None, start: int, edge: list[int]) -> None:
        self.parent = parent  # None: the root, which has no tokens and no slots
        self.start = start
        self.edge = edge
        self.children: dict[int, _Node] = {}  # by first token
        self.slots: set[int] = set()

    @property
    def end(self) -> int:
        return self.start + len(self.edge)


def _as_list(tokens: Sequence[int]) -> list[int]:
    """As a list, because a slice of a tuple never equals a slice of a list."""
    return tokens if isinstance(tokens, list) else list(tokens)


def _common_length(a: list[int], a_start: int, b: list[int], b_start: int) -> int:
    """How many tokens agree from ``a_start`` and ``b_start`` on."""
    limit = min(len(a) - a_start, len(b) - b_start)
    n = 0
    while n < limit:
        step = min(_BLOCK, limit - n)
        i, j = a_start + n, b_start + n
        if a[i : i + step] != b[j : j + step]:
            return n + next(k for k in range(step) if a[i + k] != b[j + k])
        n += step
    return limit
