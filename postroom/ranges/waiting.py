"""The waits of a range: lines at tokens, first come, first served; and deadlines by name.

::

    evaluated ── must wait ──▶ line of the token ── looked at again when the token is woken ─┐
                                  ▲ at the end                 keeps its place: must wait yet ◀┤
                                  │                                      out of the line ◀─────┘
                                 new                                  answered, or cancelled

A token names what is waited for: a locked key, the arrival of a message at a key, the next change.
The code that frees something wakes its token. Most tokens are *exclusive*: what one takes the next
cannot have. Then only the first in line is looked at, and the one behind it only when that one was
answered. A handover thus costs the same with ten in line and with ten thousand, and none is woken
in vain but the last. A token that tells the same to everybody is *shared*: all are looked at. A
``ChangeToken`` stands for changes in a span (:mod:`.feed`); a plain span is one that is locked.

No wake-up is lost, because a call stays in line until it is answered or cancelled:

* It may have to wait for something else when it is looked at (a write under way, the lease). It is
  *looked at later* then, in its place; should it be cancelled meanwhile, the next one is looked at.
* It may have to wait for the token again: then nothing was free, for those behind it neither.
* It may take a part of what there is, or fail: the next one is looked at and takes the rest. The
  same if it has to wait for something else with what it took.

Invariant: since the token was last woken, the first in line was found to have to wait, or will be
looked at again. A line has no timers. Locks and messages are held by transactions, and the time of
each of those runs out once (:mod:`.memory`), at its *deadline*.

There is one deadline for each name, replaced and cancelled. A heap cannot give up an entry in its
middle. A deadline that is replaced or cancelled stays there until it comes to the top, and the heap
is made anew when most of it is such leftovers. Code that sets a deadline a million times, and
cancels it as often, thus contains no more than a few dozen entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from postroom.ranges.calls import Call


class UserSpan(NamedTuple):
    """The keys with ``start <= key < end``; ``end`` is ``None``: to the last one."""

    start: bytes
    end: bytes | None


COMMITS_ARE_PAUSED: Final = "commits are paused"
"""The token of the commits that wait for the end of that."""

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

    A span of one key is found in a set. The others are nodes of a treap (Seidel and Aragon,
    Algorithmica 16, 1996). It is a search tree by start whose shape depends on the hashes of its
    spans alone. It is thus balanced whatever the order of arrival. Each node knows the last end
    below it, so a search skips subtrees that end before the key (Cormen et al., Introduction to
    Algorithms, section 17.3).

    With ``n`` spans, of which ``m`` contain the key, adding takes ``O(log n)`` steps, and a search
    ``O(m log n)`` at most.

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
        """Return the spans that contain ``key``."""
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


Name = TypeVar("Name", bound=Hashable)

_LEFTOVERS_MIN: Final = 16


class Deadlines(Generic[Name]):
    """Deadlines on a monotonic clock, by name. Its length is how many names have one."""

    __slots__ = ("_deadlines", "_heap", "_numbers")

    def __init__(self) -> None:
        self._deadlines: dict[Name, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Name]] = []
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, name: object) -> bool:
        return name in self._deadlines

    def begin(self, deadlines: Mapping[Name, float]) -> None:
        """Have these deadlines, and no others: faster than one by one."""
        numbered = enumerate(deadlines.items(), self._numbers + 1)
        self._deadlines = {name: (deadline, number) for number, (name, deadline) in numbered}
        self._numbers += len(deadlines)
        self._heap = [(*entry, name) for name, entry in self._deadlines.items()]
        heapq.heapify(self._heap)

    def set(self, name: Name, deadline: float) -> None:
        """Set the deadline of ``name`` to ``deadline``, in place of any other."""
        self._numbers += 1
        self._deadlines[name] = (deadline, self._numbers)
        heapq.heappush(self._heap, (deadline, self._numbers, name))
        self._shrink()

    def cancel(self, name: Name) -> bool:
        """Cancel the deadline of ``name``; return whether it had one."""
        if self._deadlines.pop(name, None) is None:
            return False
        self._shrink()
        return True

    def of(self, name: Name) -> float | None:
        """Return the deadline of ``name``, or ``None`` if it has none."""
        entry = self._deadlines.get(name)
        return None if entry is None else entry[0]

    def first(self) -> float | None:
        """Return the earliest deadline; ``None``: there is none."""
        heap, deadlines = self._heap, self._deadlines
        while heap:
            deadline, number, name = heap[0]
            if deadlines.get(name) == (deadline, number):
                return deadline
            heapq.heappop(heap)  # a leftover
        return None

    def first_due(self, now: float) -> Name | None:
        """Return the name whose deadline is the earliest, if it has passed."""
        deadline = self.first()
        return self._heap[0][2] if deadline is not None and deadline <= now else None

    def take_due(self, now: float) -> list[Name]:
        """Take the names whose deadlines have passed, in order."""
        due: list[Name] = []
        if not self._heap or self._heap[0][0] > now:
            return due
        while (deadline := self.first()) is not None and deadline <= now:
            name = heapq.heappop(self._heap)[2]
            del self._deadlines[name]
            due.append(name)
        return due

    def clear(self) -> None:
        """Cancel all deadlines."""
        self._deadlines.clear()
        self._heap.clear()

    @property
    def entries(self) -> int:
        """Return the number of entries held, leftovers included."""
        return len(self._heap)

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._deadlines) + _LEFTOVERS_MIN:
            self._heap = [(*entry, name) for name, entry in self._deadlines.items()]
            heapq.heapify(self._heap)


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two deadlines; ``None``: never."""
    return one if other is None or (one is not None and one < other) else other


Line: TypeAlias = dict[Call, None]


class ChangeToken(msgspec.Struct, frozen=True, gc=False):
    """The token of a change in a span. It is no span itself: locked spans have other lines."""

    span: UserSpan


class Waiting:
    """The lines of one replica. Its length is the number of calls in line.

    Args:
        look: looks at a call once more, and then calls ``park``, ``look_later`` or ``leave``.

    Attributes:
        lines: the calls that wait, by token, in order. Only to look at; no line is empty.
        watched: the spans in which those in line wait for a change. Only to look at.
    """

    __slots__ = ("_later", "_lines", "_look", "_waking", "lines", "watched")

    def __init__(self, look: Callable[[Call], object]) -> None:
        self._look = look
        lines: dict[object, Line] = {}
        self.lines = self._lines = lines
        self.watched = Spans()
        self._later: dict[Call, None] = {}
        self._waking: dict[object, bool] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def is_looked_at_later(self, call: Call) -> bool:
        """Return whether ``call`` is in line, and will be looked at without being woken."""
        return call in self._later

    # --- getting in line, and out of it

    def park(self, call: Call, token: object) -> None:
        """Let ``call`` wait for ``token``, at the end of the line or where it stands in it.

        If it stood in another line it has come to the head of that, and may have left something.
        """
        self._later.pop(call, None)
        before = call.token
        if before is not None and before != token:
            self.leave(call)
        call.token = token
        line = self._lines.get(token)
        if line is None:
            self._lines[token] = line = {}
            if type(token) is ChangeToken:
                self.watched.add(token.span)
        line[call] = None
        if before is not None and before != token:
            self.wake(before)

    def look_later(self, call: Call) -> None:
        """Note that ``call`` was looked at, and will be again. It may not be in line."""
        if call.token is not None:
            self._later[call] = None

    def leave(self, call: Call) -> object:
        """Take ``call``, which is about to be answered, out of line; return its token or ``None``.

        The token is to be woken when the call was answered: there may be something left.
        """
        token, call.token = call.token, None
        if token is None:
            return None
        self._later.pop(call, None)
        line = self._lines[token]
        del line[call]
        if not line:
            del self._lines[token]
            if type(token) is ChangeToken:
                self.watched.remove(token.span)
        return token

    def cancel(self, call: Call) -> bool:
        """Take out a call whose answer is wanted no more; return whether it was in line."""
        is_heir = call in self._later
        token = self.leave(call)
        if token is not None and is_heir:
            self.wake(token)
        return token is not None

    def clear(self) -> list[Call]:
        """Empty all lines; return the calls, in order, without those that are looked at later.

        Those wait elsewhere, too.
        """
        in_line = [call for line in self._lines.values() for call in line]
        calls = [call for call in in_line if call not in self._later]
        for call in in_line:
            call.token = None
        self._lines.clear()
        self.watched.clear()
        self._later.clear()
        return calls

    # --- waking

    def wake(self, token: object) -> None:
        """Look at the first in line for ``token``, and on until one must wait."""
        if not self._lines:
            return
        if token in self._waking:  # by the loop below, further up the stack: it looks once more
            self._waking[token] = True
            return
        self._waking[token] = True
        try:
            while self._waking[token] and (line := self._lines.get(token)):
                first = next(iter(line))
                if first in self._later:
                    return
                self._waking[token] = False
                self._look(first)
        finally:
            del self._waking[token]

    def wake_all(self, token: object) -> None:
        """Look at all calls in line for ``token``, which tells the same to all."""
        if not self._lines:
            return
        self._waking[token] = False
        try:
            for call in list(self._lines.get(token, ())):
                if call.token == token and call not in self._later:
                    self._look(call)
        finally:
            del self._waking[token]
