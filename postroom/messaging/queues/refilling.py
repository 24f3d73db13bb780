"""The reads of stored entries: more ready messages come into memory, or are searched.

::

    stored   a1 a2 a3 │ b1 │ c1 │ d1 d2 …      one walk: small groups are next to each other
    memory   a1 a2    │ b1 │ c1 │ d1           a quantum of each group, as long as there is room

Each proposal reads a bounded number of entries (:mod:`.ready` says which are kept).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroom.kv import keys
from postroom.messaging.queues import records
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.ready import Placed
from postroom.messaging.queues.records import UNDECODABLE, Entry, damaged, decoded
from postroom.ranges.evaluation import Evaluation

READ_AT_ONCE: Final = 2000
"""The number of stored entries that are read into memory, or searched, in one proposal."""
STEPS_BEFORE_SEEK: Final = 4
"""The number of entries that are stepped over, rather than looking for the next group."""


class Refilling:
    """The reads of one queue's stored entries in one proposal.

    Args:
        manager: the memory of the queue.
        ctx: the proposal under evaluation.
    """

    def __init__(self, manager: Manager, ctx: Evaluation) -> None:
        self._manager = manager
        self._ctx = ctx
        self._taken = manager.speculation.taken

    def read_on(self) -> bool:
        """Read more stored entries into memory.

        Return whether that was as much as there is room for.
        """
        ready = self._manager.ready
        if ready.is_complete or (len(ready) > ready.size // 2 and not ready.make_room()):
            return True
        budget = min(ready.size - len(ready), READ_AT_ONCE)
        if ready.knows_what_goes:
            return self._read_known(budget)
        return self._read_round(budget)

    def makes_room(self) -> bool:
        """Return whether room was made for claims that got nothing.

        The entries that fill the memory were found to be held up just now.
        """
        manager = self._manager
        if manager.ready.is_complete or manager.consumers.have_all():
            return False
        return manager.ready.make_room()

    def _read_known(self, budget: int) -> bool:
        """Read more of the groups that are known, behind their entries in memory."""
        ready = self._manager.ready
        for name in ready.groups_with_more(budget):
            if budget <= 0:
                return False
            budget -= self._read_group(name, min(budget, ready.quantum))
        return budget > 0  # otherwise there may be other groups

    def _read_round(self, budget: int) -> bool:
        """Read one stored group after the other; return whether the round was ended."""
        ready, layout = self._manager.ready, self._manager.layout
        if not ready.cursor:
            ready.cursor = layout.ready
            ready.begin_round()
        walk = _Walk(self._ctx, ready.cursor, keys.after_prefix(layout.ready))
        while budget > 0:
            first = walk.first
            self._ctx.steps += 1
            budget -= 1
            if first is None:
                return ready.end_round() and budget > 0 and self._read_known(budget)
            name = self._entry(*first).group
            if not ready.passes(name):
                if not ready.has_room_for(name):
                    return True
                if ready.known_up_to(name) != b"" and not ready.is_fed(name):
                    budget -= self._read_group(name, min(max(budget, 1), ready.quantum), walk)
            ready.cursor = keys.after_prefix(layout.group_prefix(name))
            walk.go_to(ready.cursor)
        return False

    def _read_group(self, name: str, entries_max: int, walk: _Walk | None = None) -> int:
        """Read entries of a group; ``walk`` stands at its first one, if it is given."""
        ready, prefix = self._manager.ready, self._manager.layout.group_prefix(name)
        known, end = ready.known_up_to(name), keys.after_prefix(prefix)
        if known or walk is None:
            walk = _Walk(self._ctx, known + b"\x00" if known else prefix, end)
        pairs = walk.take(end, entries_max)
        has_more = walk.first is not None and walk.first[0] < end
        up_to = pairs[-1][0] if pairs else b""
        ready.read(name, self._placed(pairs, name), up_to, has_more=has_more)
        self._ctx.steps += len(pairs)
        return len(pairs) + 1

    def _placed(self, pairs: list[tuple[bytes, bytes]], group: str) -> list[Placed]:
        """Return the stored entries of one group. There are many, so each one costs little here."""
        taken, decode = self._taken, records.entries.decode
        try:
            placed = [(key, decode(packed)) for key, packed in pairs if key not in taken]
        except UNDECODABLE:
            # This tells which entry is damaged.
            placed = [(key, self._entry(key, packed)) for key, packed in pairs]
        for key, entry in placed:
            if entry.group != group or not key.endswith(entry.seq):
                self._check(key, entry)
        return placed

    def entries(self, lower: bytes, upper: bytes) -> Iterator[Placed]:
        """Iterate over the stored entries in a span that this proposal has not taken."""
        taken = self._taken
        for key, packed in self._ctx.iterate(lower, upper):
            if key not in taken:
                yield key, self._entry(key, packed)

    def _entry(self, key: bytes, packed: bytes) -> Entry:
        entry = decoded(records.entries, packed, self._manager.name)
        self._check(key, entry)
        return entry

    def _check(self, key: bytes, entry: Entry) -> None:
        """Check that a stored entry belongs to its key.

        Reading goes on behind the group that the entry names. With a wrong group it would go in
        circles.
        """
        manager = self._manager
        if not key.startswith(manager.layout.group_prefix(entry.group)):
            raise damaged(manager.name, "a stored entry", f"it tells the group {entry.group!r}")
        if not key.endswith(entry.seq):
            raise damaged(manager.name, "a stored entry", "it is that of another message")


class _Walk:
    """A walk through stored entries, group by group. Most groups are small, and next to each other.

    Attributes:
        first: the pair at which it stands; ``None``: it is at its end.
    """

    __slots__ = ("_ctx", "_end", "_pairs", "first")

    def __init__(self, ctx: Evaluation, begin: bytes, end: bytes) -> None:
        self._ctx = ctx
        self._end = end
        self._seek(begin)

    def _seek(self, begin: bytes) -> None:
        self._pairs = self._ctx.iterate(begin, self._end)
        self.first = next(self._pairs, None)

    def take(self, end: bytes, pairs_max: int) -> list[tuple[bytes, bytes]]:
        """Return the next pairs, which are below a key."""
        taken: list[tuple[bytes, bytes]] = []
        while len(taken) < pairs_max and self.first is not None and self.first[0] < end:
            taken.append(self.first)
            self.first = next(self._pairs, None)
        return taken

    def go_to(self, begin: bytes) -> None:
        """Go to the first pair from a key on."""
        self.take(begin, STEPS_BEFORE_SEEK)
        if self.first is not None and self.first[0] < begin:
            self._seek(begin)
