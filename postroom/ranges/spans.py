"""Spans of keys, and which of them hold a key: an interval tree.

A span of one key is found in a set. The others are nodes of a treap (Seidel and Aragon,
Algorithmica 16, 1996). It is a search tree by start whose shape depends on the hashes of its spans
alone. It is thus balanced whatever the order of arrival. Each node knows the last end below it, so
a search skips subtrees that end before the key (Cormen et al., Introduction to Algorithms, section
17.3).

With ``n`` spans, of which ``m`` hold the key, adding takes ``O(log n)`` steps, and a search
``O(m log n)`` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias


class UserSpan(NamedTuple):
    """The keys with ``start <= key < end``; ``end`` is ``None``: to the last one."""

    start: bytes
    end: bytes | None


_End: TypeAlias = tuple[bool, bytes]
_NOWHERE: Final[_End] = (False, b"")


class _TreapNode:
    __slots__ = ("end", "last", "left", "priority", "right", "span")

    def __init__(self, span: UserSpan, priority: int) -> None:
        self.span = span
        self.priority = priority
        self.end: _End = (span.end is None, span.end or b"")
        self.last = self.end
        self.left: _TreapNode | None = None
        self.right: _TreapNode | None = None


_Tree: TypeAlias = _TreapNode | None


class Spans:
    """A set of spans. Its length is their number.

    Args:
        priority: decides the shape of the tree. Clients cannot foresee ``hash``: the process seeds
            it.
    """

    __slots__ = ("_points", "_priority", "_root", "_wide")

    def __init__(self, priority: Callable[[UserSpan], int] = hash) -> None:
        self._priority = priority
        self.clear()

    def __len__(self) -> int:
        return len(self._points) + self._wide

    def clear(self) -> None:
        """Remove all spans."""
        self._points: set[bytes] = set()
        self._wide = 0
        self._root: _Tree = None

    def add(self, span: UserSpan) -> None:
        """Add a span that is not among them."""
        if span.end == span.start + b"\x00":
            self._points.add(span.start)
            return
        node = _TreapNode(span, self._priority(span))
        less, rest = _split(self._root, span)
        self._root = _merge(_merge(less, node), rest)
        self._wide += 1

    def remove(self, span: UserSpan) -> None:
        """Remove a span that is among them."""
        if span.end == span.start + b"\x00":
            self._points.remove(span.start)
            return
        less, rest = _split(self._root, span)
        self._root = _merge(less, _without_first(rest))
        self._wide -= 1

    def holding(self, key: bytes) -> list[UserSpan]:
        """Return the spans that hold ``key``."""
        found = [UserSpan(key, key + b"\x00")] if key in self._points else []
        if self._root is None:
            return found
        at, ahead = (False, key), [self._root]
        while ahead:
            node = ahead.pop()
            if node.last <= at:
                continue
            if node.left is not None:
                ahead.append(node.left)
            if node.span.start <= key:
                if node.end > at:
                    found.append(node.span)
                if node.right is not None:
                    ahead.append(node.right)
        return found

    def all(self) -> list[UserSpan]:
        """Return all spans."""
        found = [UserSpan(start, start + b"\x00") for start in self._points]
        ahead = [self._root]
        while ahead:
            node = ahead.pop()
            if node is not None:
                found.append(node.span)
                ahead += (node.left, node.right)
        return found


def _order(span: UserSpan) -> tuple[bytes, _End]:
    return span.start, (span.end is None, span.end or b"")


def _split(tree: _Tree, span: UserSpan) -> tuple[_Tree, _Tree]:
    """Return what lies before ``span``, and the rest."""
    if tree is None:
        return None, None
    if _order(tree.span) < _order(span):
        tree.right, rest = _split(tree.right, span)
        return _sum_up(tree), rest
    less, tree.left = _split(tree.left, span)
    return less, _sum_up(tree)


def _merge(less: _Tree, more: _Tree) -> _Tree:
    """Return one tree of two; everything in ``less`` lies before everything in ``more``."""
    if less is None or more is None:
        return less or more
    if less.priority > more.priority:
        less.right = _merge(less.right, more)
        return _sum_up(less)
    more.left = _merge(less, more.left)
    return _sum_up(more)


def _without_first(tree: _Tree) -> _Tree:
    assert tree is not None, "the span is not there"
    if tree.left is None:
        return tree.right
    tree.left = _without_first(tree.left)
    return _sum_up(tree)


def _sum_up(tree: _TreapNode) -> _TreapNode:
    left = _NOWHERE if tree.left is None else tree.left.last
    right = _NOWHERE if tree.right is None else tree.right.last
    tree.last = max(tree.end, left, right)
    return tree
