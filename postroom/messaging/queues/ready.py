"""The ready messages of a queue that are in memory, and whose turn it is.

::

    stored   group a   1 2 3 4 5 6 7 8 …          cache   a  1 2 3 4    (more are stored)
             group b   1 2                                b  1 2
             group c   1                                  c  1
                                                   turns   a b c a b a a …

The groups take turns, one message each. Within a group it is the order of rank (:mod:`.records`).
Memory is bounded: no more entries than ``size`` are kept, without their payloads, and the rest is
read as those are fired. Reading goes through the stored groups in turns as well, a *quantum* of
each: so a flood of one group delays another one by one such round at most.

Of a group, the cache holds its first entries without a gap. ``more`` says that there may be others
behind them. ``knows_all_groups`` says that whatever group is not here has nothing stored: what
comes for such a group is taken in. If there is no room, the group that has most here gives up its
last ones.

A group that may not fire just now (its limits, its failing head) is *held*: it has no turns until
it is freed. Nothing here is stored, and nothing is decided: all of it can be forgotten and read
again (``forget``).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

from postroom.messaging.queues.records import Entry

Placed: TypeAlias = tuple[bytes, Entry]
"""An entry and its engine key, by which those of a group are ordered."""


class Wants(Protocol):
    """What a consumer takes.

    Attributes:
        kinds: these, or any.
        looks_closer: whether it depends on more than the kind.
        seen: it takes none of what had been added before this many ``additions``: that is not
            looked at again, since it may mean to read each message.
    """

    kinds: frozenset[str] | None
    looks_closer: bool
    seen: int

    def takes(self, entry: Entry) -> bool:
        """Whether it takes this one."""


QUANTUM_SHARE: Final = 16


_Queued: TypeAlias = tuple[bytes, int, Entry]
"""The same in a heap: no two of them have the same number."""


class _Group:
    """The entries of one group, by kind.

    Attributes:
        count: how many there are.
        last: the greatest key up to which none is missing, if there are ``more``.
    """

    __slots__ = ("count", "lanes", "last", "more")

    def __init__(self) -> None:
        self.lanes: dict[str, list[_Queued]] = {}
        self.count = 0
        self.more = False
        self.last = b""


class ReadyCache:
    """See the module. Its length is how many entries it holds.

    Args:
        size: how many it may hold.
        ordered: whether the groups are in order: of each only the first entry may be taken.

        on_left_out: told of what is stored and not kept here.

    Attributes:
        knows_all_groups: see the module.
        cursor: where the round of reading goes on; ``b""``: a new one begins.
        round_is_whole: whether that round has missed no group so far.
        additions: rises with whatever is added, or freed.
    """

    def __init__(
        self, size: int, *, ordered: bool, on_left_out: Callable[[bytes, Entry], None]
    ) -> None:
        self.size = size
        self.ordered = ordered
        self._on_left_out = on_left_out
        self.additions = 0
        self.forget()

    def forget(self) -> None:
        """Nothing is known of what is stored."""
        self._groups: dict[str, _Group] = {}
        self._turns: deque[str] = deque()
        self._held: dict[str, None] = {}
        self._alive: dict[bytes, Entry] = {}
        self._more: dict[str, None] = {}
        self._hungry: dict[str, None] = {}
        self.knows_all_groups = False
        self.round_is_whole = False
        self.cursor = b""
        self.additions += 1

    def nothing_is_stored(self) -> None:
        """There is no entry at all: what comes from now on is all there is."""
        self.forget()
        self.knows_all_groups = True

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, key: bytes) -> bool:
        return key in self._alive

    @property
    def is_complete(self) -> bool:
        """Whether all that is stored is here."""
        return self.knows_all_groups and not self._more

    @property
    def quantum(self) -> int:
        """How many entries of a group one round reads."""
        return max(1, self.size // QUANTUM_SHARE)

    # --- in

    def offer(self, key: bytes, entry: Entry) -> bool:
        """An entry is stored; whether it is kept here."""
        if key in self._alive:
            return True
        group = self._groups.get(entry.group)
        if group is None and self._may_open():
            group = self._open(entry.group)
        if group is None or (group.more and key > group.last):
            self._on_left_out(key, entry)
            return False
        self._add(group, key, entry)
        if entry.group in self._hungry:
            del self._hungry[entry.group]
            self._turns.append(entry.group)
        if len(self._alive) > self.size:
            self._give_up()
        return key in self._alive

    def _may_open(self) -> bool:
        """Whether an unknown group may be taken in: nothing of it is stored."""
        if self.knows_all_groups and len(self._groups) < self.size:
            return True
        self._misses_a_group()
        return False

    def _misses_a_group(self) -> None:
        self.knows_all_groups = self.round_is_whole = False

    def read(self, name: str, placed: Iterator[Placed], entries_max: int) -> int:
        """What is stored of a group, behind what is here; answers how many were looked at."""
        group = self._groups.get(name) or self._open(name)
        visited, has_more = 0, False
        for key, entry in placed:
            if visited >= entries_max:
                has_more = True
                break
            visited += 1
            group.last = key
            if key not in self._alive:
                self._add(group, key, entry)
        self._set_more(name, group, has_more=has_more)
        if name in self._hungry:
            del self._hungry[name]
            self._turns.append(name)
        return visited

    def known_up_to(self, name: str) -> bytes | None:
        """Up to which key all entries of a group are here (``b""``: all that there are); ``None``:
        nothing is known of it.
        """
        group = self._groups.get(name)
        if group is None:
            return None
        return group.last if group.more else b""

    def groups_with_more(self) -> list[str]:
        """Of which groups more is stored; those first that have nothing here."""
        return [*self._hungry, *(name for name in self._more if name not in self._hungry)]

    @property
    def has_room_for_groups(self) -> bool:
        """Whether another group can be taken in."""
        return len(self._groups) < self.size

    def _set_more(self, name: str, group: _Group, *, has_more: bool) -> None:
        group.more = has_more
        if has_more:
            self._more[name] = None
        else:
            self._more.pop(name, None)

    def _open(self, name: str) -> _Group:
        self._groups[name] = group = _Group()
        self._turns.append(name)
        return group

    def _add(self, group: _Group, key: bytes, entry: Entry) -> None:
        lane = "" if self.ordered else entry.kind
        self.additions += 1
        heapq.heappush(group.lanes.setdefault(lane, []), (key, self.additions, entry))
        group.count += 1
        self._alive[key] = entry

    def _give_up(self) -> None:
        """The group that has most gives up the last half of what it has here."""
        name, group = max(self._groups.items(), key=lambda pair: pair[1].count)
        alive = self._alive
        lanes = group.lanes.values()
        queued = sorted(each for lane in lanes for each in lane if alive.get(each[0]) is each[2])
        kept, given_up = queued[: len(queued) // 2], queued[len(queued) // 2 :]
        for key, _, entry in given_up:
            del alive[key]
            self._on_left_out(key, entry)
        group.lanes = {}
        for each in kept:
            group.lanes.setdefault("" if self.ordered else each[2].kind, []).append(each)
        group.count = len(kept)
        group.last = kept[-1][0] if kept else b""
        self._set_more(name, group, has_more=True)

    # --- out

    def discard(self, key: bytes) -> None:
        """An entry is not ready any more."""
        entry = self._alive.pop(key, None)
        if entry is not None:
            self._groups[entry.group].count -= 1

    def take(self, wants: Wants | None, may: Callable[[str, Entry], bool] | None) -> Placed | None:
        """The entry whose turn it is.

        Args:
            wants: what the consumer takes; ``None``: any.
            may: whether a group may fire; if not, it is held until it is freed. ``None``: any may.
        """
        for _ in range(len(self._turns)):
            name = self._turns[0]
            group = self._groups[name]
            first = self._first(group)
            if first is None:
                self._close(name, group)
                continue
            if may is not None and not may(name, first[2]):
                self._turns.popleft()
                self._held[name] = None
                continue
            self._turns.rotate(-1)
            found = self._take_from(group, first, wants)
            if found is not None:
                del self._alive[found[0]]
                group.count -= 1
                return found[0], found[2]
        if wants is not None and not (self.ordered or self._held):
            wants.seen = self.additions
        return None

    def _first(self, group: _Group) -> _Queued | None:
        """The first entry of a group, of whatever kind."""
        first: _Queued | None = None
        if len(group.lanes) == 1:
            return self._head(group, next(iter(group.lanes)))
        for kind in list(group.lanes):
            head = self._head(group, kind)
            if head is not None and (first is None or head[0] < first[0]):
                first = head
        return first

    def _head(self, group: _Group, kind: str) -> _Queued | None:
        lane, alive = group.lanes[kind], self._alive
        while lane and alive.get(lane[0][0]) is not lane[0][2]:
            heapq.heappop(lane)
        if not lane:
            del group.lanes[kind]
            return None
        return lane[0]

    def _take_from(self, group: _Group, first: _Queued, wants: Wants | None) -> _Queued | None:
        lanes = group.lanes
        if wants is None or (first[1] > wants.seen and wants.takes(first[2])):
            return heapq.heappop(lanes["" if self.ordered else first[2].kind])
        if self.ordered:
            return None
        found: _Queued | None = None
        for kind in list(lanes):
            if wants.kinds is None or kind in wants.kinds:
                candidate = self._wanted(group, kind, wants)
                if candidate is not None and (found is None or candidate[0] < found[0]):
                    found = candidate
        if found is None:
            return None
        lane = lanes[found[2].kind]
        if lane[0] is found:
            heapq.heappop(lane)
        else:
            lane.remove(found)
            heapq.heapify(lane)
        return found

    def _wanted(self, group: _Group, kind: str, wants: Wants) -> _Queued | None:
        """The first of a kind that a consumer takes."""
        head = self._head(group, kind)
        if head is None or (head[1] > wants.seen and wants.takes(head[2])):
            return head
        if not wants.looks_closer:
            return None
        alive, seen = self._alive, wants.seen
        new = (each for each in group.lanes[kind] if each[1] > seen)
        living = (each for each in new if alive.get(each[0]) is each[2])
        return min((each for each in living if wants.takes(each[2])), default=None)

    def _close(self, name: str, group: _Group) -> None:
        """It has nothing here. If more is stored, that is read next."""
        self._turns.popleft()
        if group.more:
            self._hungry[name] = None
        else:
            del self._groups[name]

    def oldest(self) -> int:
        """When the oldest of those here became due; 0: there is none."""
        return min((entry.due for entry in self._alive.values()), default=0)

    # --- held groups

    def free(self, name: str) -> None:
        """A group may fire again, perhaps."""
        if name in self._held:
            del self._held[name]
            self._turns.append(name)
            self.additions += 1

    def free_all(self) -> None:
        """All may."""
        for name in list(self._held):
            self.free(name)
